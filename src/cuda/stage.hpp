#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "cuda/conv_math.hpp"
#include "cuda/norm_math.hpp"
#include "cuda/pool_math.hpp"
#include "cuda/value_type.hpp"

/// A network as a chain of stages, each one layer, a layer with the ReLU behind it, or a pooling and a
/// normalization; stage s turns edge s into edge s+1. Needs no device: what the kernels are is settled
/// elsewhere.
namespace cifar_mpi::cuda {

/// What activations and compute copies of weights are stored as.
constexpr ValueType value_type(engine::Precision precision) {
  return precision == engine::Precision::bf16 ? ValueType::bf16 : ValueType::fp32;
}

/// The activations between two stages, NHWC without padding, and their gradient in the precision of the
/// tower.
struct Edge {
  Extent extent;
  bool fp32 = false;        ///< the value is fp32 whatever the precision (logits)
  bool wants_grad = false;  ///< a layer with parameters stands before it
};

/// Conv2d or Linear as a matrix product: [rows, inner] · [inner, outputs] + biases, with the ReLU behind it.
struct Affine {
  std::size_t weights = 0;  ///< index in the ParamTable
  std::size_t biases = 0;
  Extent in;
  int outputs = 0;
  int kernel = 0;  ///< 0 for a linear layer
  int before = 0;  ///< padding of a convolution
  int after = 0;
  int inner = 0;
  int row = 0;  ///< `inner` rounded up for a convolution: rows of the weights in memory, the last ones zero
  bool relu = false;
  bool masks = false;  ///< its own backward pass masks the gradient by the ReLU, no stage behind it does
  bool wants_grad_x = false;
  bool logits = false;
  double flops = 0.0;  ///< of one pass over one image, without taps outside of it

  bool is_conv() const { return kernel > 0; }
  std::int64_t rows(int batch) const {
    return std::int64_t{batch} * (is_conv() ? std::int64_t{in.height} * in.width : 1);
  }
  /// Rows of the input's windows.
  PatchShape forward_patches(int batch) const {
    return {batch, in.height, in.width, in.channels, kernel, before, row};
  }
  /// Rows of the output gradient's windows: the convolution that is the data gradient.
  PatchShape backward_patches(int batch) const {
    const int wanted = kernel * kernel * outputs;
    return {batch, in.height, in.width, outputs, kernel, after, round_up(wanted, kPatchGroup)};
  }
};

struct Pool {
  PoolPlace place;
  bool relu = false;  ///< its source is the output of a ReLU: the backward pass masks on the way
};

struct Norm {
  NormRule rule;
  bool relu = false;  ///< as in Pool
};

/// A pooling and the normalization behind it, or the other way round, as one; the pooled or normalized values
/// between them are no edge.
struct PoolNorm {
  Pool pool;
  Norm norm;
};
struct NormPool {
  Norm norm;
  Pool pool;
};

/// A ReLU that no stage before it could take in.
struct Rectify {
  bool masks = false;  ///< as in Affine
};

struct Stage {
  using Work = std::variant<Affine, Pool, Norm, PoolNorm, NormPool, Rectify>;

  std::string name;
  Work work;
};

struct NetPlan {
  int batch = 0;
  int classes = 0;
  engine::Precision precision = engine::Precision::fp32;
  std::vector<Stage> stages;
  std::vector<Edge> edges;  ///< one more than stages; the last holds the logits
  engine::ParamLayout layout;
};

}  // namespace cifar_mpi::cuda
