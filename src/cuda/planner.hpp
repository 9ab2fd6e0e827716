#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "cifar_mpi/engine/backend.hpp"
#include "cuda/conv_math.hpp"
#include "cuda/lrn_math.hpp"
#include "cuda/pool_math.hpp"
#include "cuda/value_type.hpp"

/// Which layers are one group, and of which sizes. Needs no device: what the kernels are is settled elsewhere.
namespace cifar_mpi::cuda {

/// What activations and compute copies of weights are stored as.
constexpr ValueType value_type(engine::Precision precision) {
  return precision == engine::Precision::bf16 ? ValueType::bf16 : ValueType::fp32;
}

/// Conv2d or Linear as a matrix product: [rows, inner] · [inner, outputs] + biases, with the ReLU behind it.
struct Affine {
  Extent in;
  int outputs = 0;
  int kernel = 0;  ///< 0 for a linear layer
  int before = 0;  ///< padding of a convolution
  int after = 0;
  int inner = 0;
  int row = 0;  ///< `inner` rounded up for a convolution: rows of the weights in memory, the last ones zero
  bool relu = false;
  bool wants_grad_x = false;
  bool logits = false;  ///< the output is fp32 whatever the precision

  bool is_conv() const { return kernel > 0; }
  std::int64_t rows(int batch) const {
    return std::int64_t{batch} * (is_conv() ? std::int64_t{in.height} * in.width : 1);
  }
  std::size_t weights() const { return static_cast<std::size_t>(inner) * static_cast<std::size_t>(outputs); }
  /// With the zero rows.
  std::size_t weights_in_memory() const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(outputs);
  }
  /// Rows of the input's windows.
  Im2colShape forward_patches(int batch) const {
    return {batch, in.height, in.width, in.channels, kernel, before, row};
  }
  /// Rows of the output gradient's windows: the convolution that is the data gradient.
  Im2colShape backward_patches(int batch) const {
    const int wanted = kernel * kernel * outputs;
    return {batch, in.height, in.width, outputs, kernel, after, round_up(wanted, kIm2colGroup)};
  }
};

struct Pool {
  PoolPlace place;
};

struct Lrn {
  LrnRule rule;
  std::int64_t pixels = 0;  ///< of the batch
  int channels = 0;
};

/// A pooling and the normalization behind it, or the other way round, as one; the pooled or normalized values
/// between them are no value of the program.
struct PoolLrn {
  Pool pool;
  Lrn lrn;
};
struct LrnPool {
  Lrn lrn;
  Pool pool;
};

/// A ReLU that no layer before it could take in.
struct Relu {};

/// The sum of two values.
struct Sum {};

using Work = std::variant<Affine, Pool, Lrn, PoolLrn, LrnPool, Relu, Sum>;

/// What a chain begins with.
struct GroupPlan {
  Work work;
  engine::Contract contract;
};

/// The format of activations: NHWC without gaps.
engine::Format activations(int batch, const Extent& extent, ValueType type);
ValueType type_of(const engine::Format& format);
std::int64_t values_in(const engine::Format& format);

/// A ReLU joins the convolution or linear layer before it. Its mask moves into the pooling or normalization
/// behind it, max(relu(x)) = relu(max(x)). Parameters lie as TensorFlow has them; the weights of a
/// convolution are followed by zero rows up to a multiple of kIm2colGroup. Throws Error{usage} naming the
/// layer when it is of a size that no kernel here takes.
GroupPlan plan_group(const engine::Chain& chain, int batch, engine::Precision precision);

}  // namespace cifar_mpi::cuda
