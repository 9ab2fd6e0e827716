#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/kernels.hpp"
#include "cuda/conv_math.hpp"
#include "cuda/lrn_math.hpp"
#include "cuda/pool_math.hpp"
#include "cuda/value_type.hpp"

/// Chooses the layers of each group and its sizes. Needs no device: kernels are chosen elsewhere.
namespace cifar_mpi::cuda {

/// Storage type of activations and compute copies of weights.
constexpr ValueType value_type(engine::Precision precision) {
  return precision == engine::Precision::bf16 ? ValueType::bf16 : ValueType::fp32;
}

/// Conv2d or Linear as a matrix product: [rows, inner] · [inner, outputs], optionally with biases and the
/// ReLU after them.
struct Affine {
  Extent in;
  Extent out;
  int outputs =
      0;  ///< in memory: bf16 logits are rounded up to kIm2colGroup, because tensor cores process whole groups
  int columns = 0;  ///< of `outputs`; the others are zero
  int kernel = 0;   ///< 0 for a linear layer
  int stride = 1;
  int before = 0;  ///< padding of a convolution, rows and columns before the image
  int inner = 0;
  int row = 0;  ///< `inner` rounded up for a convolution: rows of the weights in memory, the last ones zero
  bool biased = true;
  bool relu = false;
  bool has_tail = false;  ///< which adds the biases if the product does not
  bool wants_grad_x = false;
  bool logits = false;  ///< the output is fp32 whatever the precision

  bool is_conv() const { return kernel > 0; }
  std::int64_t rows(int batch) const { return std::int64_t{batch} * out.height * out.width; }
  std::int64_t in_rows(int batch) const {
    return is_conv() ? std::int64_t{batch} * in.height * in.width : batch;
  }
  std::size_t weights() const { return static_cast<std::size_t>(inner) * static_cast<std::size_t>(outputs); }
  /// Including the zero rows.
  std::size_t weights_in_memory() const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(outputs);
  }
  /// Rows of the input's windows.
  Im2colShape forward_patches(int batch) const {
    return {batch, in.height, in.width, in.channels, kernel, before, row, stride, 1, out.height, out.width};
  }
  /// Rows of the output gradient's windows: the convolution that is the data gradient.
  Im2colShape backward_patches(int batch) const {
    const int wanted = kernel * kernel * outputs;
    return {
        batch, out.height, out.width, outputs, kernel, kernel - 1 - before, round_up(wanted, kIm2colGroup),
        1,     stride,     in.height, in.width};
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

/// A pooling and the normalization after it, or the reverse, as one layer; the program has no value between them.
struct PoolLrn {
  Pool pool;
  Lrn lrn;
};
struct LrnPool {
  Lrn lrn;
  Pool pool;
};

/// A ReLU that could not join the layer before it.
struct Relu {};

/// SiLU, GELU or a constant factor.
struct Pointwise {
  model::Pointwise layer;
};

/// The sum of two values.
struct Sum {};

/// Includes the ReLU after it; readers of the output need not mask.
struct BatchNorm {
  std::int64_t rows = 0;  ///< pixels of the batch
  int channels = 0;
  float epsilon = 0.0f;
  bool relu = false;
};

struct GlobalAvgPool {
  int batch = 0;
  int pixels = 0;  ///< of an image
  int channels = 0;
};

/// Both directions are the windows of a 1x1 kernel: zeros for pixels that the stride skips, and for missing
/// channels.
struct Shortcut {
  Im2colShape forward;
  Im2colShape backward;
};

using Work = std::variant<Affine, Pool, Lrn, PoolLrn, LrnPool, Relu, Pointwise, Sum, BatchNorm, GlobalAvgPool,
                          Shortcut>;

/// The group that a chain begins with.
struct GroupPlan {
  Work work;
  engine::Contract contract;
  std::vector<GroupPlan>
      tail;  ///< of an Affine, at most one: the group after its ReLU, which takes in that ReLU
};

/// The format of activations: NHWC without gaps.
engine::Format activations(int batch, const Extent& extent, ValueType type);
ValueType type_of(const engine::Format& format);
std::int64_t values_in(const engine::Format& format);

/// If a convolution or linear layer with biases comes before it, a ReLU joins the pooling or normalization
/// after it, and all form one group (join_tail); else it joins that layer, or the BatchNorm. Parameters have
/// TensorFlow's order. Zero rows pad the weights of a convolution to a multiple of kIm2colGroup, and zeros
/// pad the rows of the last layer in bf16. Throws Error{usage} naming the layer when no kernel here supports
/// its size.
GroupPlan plan_group(const engine::Chain& chain, int batch, engine::Precision precision);

/// `layer` and the group after its ReLU as one group, which takes in the ReLU, and with `leaves_bias` the
/// layer's biases as the tail's only parameter. Values between them are in this group's memory.
std::unique_ptr<engine::Group> join_tail(std::unique_ptr<engine::Group> layer,
                                         std::unique_ptr<engine::Group> tail,
                                         std::function<bool()> leaves_bias);

}  // namespace cifar_mpi::cuda
