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

/// A compute copy of weights in the format a kernel wants; without `reorder` the master copy serves as it is.
struct WeightCopy {
  Desc desc;
  std::optional<Kernel> reorder;
};

/// Conv2d or Linear, with the ReLU behind it if there is one. A linear layer sees its edges as matrices.
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

  bool shares_weights() const { return forward_weights.desc == backward_weights.desc; }
};

struct Pool {
  PoolKernels kernels;
  Desc workspace;
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
  std::string name;
  std::variant<Affine, Pool, Norm, Rectify, Reformat> work;
};

}  // namespace cifar_mpi::cpu
