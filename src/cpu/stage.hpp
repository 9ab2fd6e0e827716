#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cifar_mpi/model/layer.hpp"
#include "cpu/dnnl.hpp"
#include "cpu/norm.hpp"

/// A network as a chain of stages, each one layer or a fused group; stage s turns edge s into edge s+1.
namespace cifar_mpi::cpu {

/// The activations between two stages and their gradient, logically [batch, channels, height, width].
struct Edge {
  Desc value;
  Desc grad;  ///< the format of `value`, in the precision of the tower (logits are fp32 whatever the
              ///< precision)
  Extent extent;
  bool wants_grad = false;  ///< a layer with parameters stands before it
  bool masked = false;      ///< the gradient is zeroed where the value is not positive, in a task of its own
};

/// Weights of a convolution turned by 180 degrees with in and out swapped, fp32, tap by tap.
struct Turning {
  Kernel unpack;  ///< master → taps
  Desc taps;      ///< {out, in, k, k} in the order [k, k, out, in]
  Desc turned;    ///< {in, out, k, k}: the same bytes when the taps stand in reverse order
  int tap_count = 0;
  std::size_t tap_floats = 0;
};

/// A compute copy of weights in the format a kernel wants; without `reorder` the master copy serves as it is.
struct WeightCopy {
  Desc desc;
  std::optional<Turning> turning;
  std::optional<Kernel> reorder;  ///< master → desc, or turned → desc
};

/// Conv2d or Linear, with the ReLU behind it if there is one. A linear layer sees its edges as matrices. A
/// convolution goes through the batch in `pieces`; its formats and kernels are then of one piece.
struct Affine {
  std::size_t weights = 0;  ///< index in the ParamTable
  std::size_t biases = 0;
  Desc src;
  Desc dst;
  Desc grad_dst;
  Desc master;  ///< weights and their gradient
  Desc bias;
  AffineKernels kernels;
  WeightCopy forward_weights;
  WeightCopy backward_weights;  ///< for the data gradient; unused when its format is the forward one
  bool wants_grad_src = false;
  bool relu = false;
  int pieces = 1;
  double flops = 0.0;  ///< of one pass over the batch, without taps outside the image

  std::size_t weight_floats() const { return master.get_size() / sizeof(float); }
  std::size_t bias_floats() const { return bias.get_size() / sizeof(float); }
  /// Of the parameters' gradients of one piece.
  std::size_t partial_bytes() const { return master.get_size() + bias.get_size(); }
  /// The data gradient is a convolution of the gradient (see conv.hpp).
  bool is_turned() const { return backward_weights.turning.has_value(); }
  bool shares_weights() const { return !is_turned() && forward_weights.desc == backward_weights.desc; }
};

struct Pool {
  PoolKernels kernels;
  Desc workspace;
};

/// Conv2d, Relu if there is one, and MaxPool, going through the batch in the pieces of `conv` (see
/// conv_pool.hpp); `pool` is of one piece too.
struct ConvPool {
  Affine conv;
  Pool pool;
  Desc piece_dst;  ///< the pooled values of one piece
  Desc dst;        ///< of the whole batch
};

struct Norm {
  model::LocalResponseNorm layer;
  LrnShape shape;
  bool mask_relu = false;  ///< its source is the output of a ReLU: the backward pass masks on the way
};

/// A ReLU that no stage before it could take in. Its gradient is that of its output, masked.
struct Rectify {};

/// The same values in another format or type.
struct Reformat {
  Kernel forward;
  std::optional<Kernel> backward;
};

struct Stage {
  using Work = std::variant<Affine, Pool, ConvPool, Norm, Rectify, Reformat>;

  std::string name;
  Work work;
};

/// The layer with parameters in a stage, or null.
const Affine* affine_of(const Stage& stage);

}  // namespace cifar_mpi::cpu
