#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cpu/stage.hpp"

namespace cifar_mpi::cpu {

/// Where and how one parameter lies in memory.
struct ParamFormat {
  Desc master;   ///< what the weight-gradient kernel writes; may be padded
  Desc logical;  ///< TensorFlow's order
};

/// A network planned for one batch size and precision: formats, kernels and what they need.
struct NetPlan {
  std::vector<Stage> stages;
  std::vector<Edge> edges;  ///< one more than stages; the last holds the logits, fp32 [batch, classes]
  std::vector<ParamFormat> params;  ///< by ParamTable index
  std::size_t scratch_bytes = 0;    ///< the most any kernel needs
  std::string text;                 ///< one line per kernel
};

/// Chooses formats and kernels, the longest match of layers first.
///
/// The formats are those that measured fastest: the first convolution reads the NCHW input and chooses its
/// output (blocked by 16 channels with AVX-512), as do the poolings behind it; a normalization turns to NHWC,
/// which all further layers use. Where no normalization stands between, a reorder does. Master weights have
/// the format of the weight gradient. The mask of a ReLU moves behind the poolings that follow it,
/// max(relu(x)) = relu(max(x)), and into the normalization behind them.
///
/// Throws Error{usage}, naming the layer, when oneDNN has no kernel for it.
NetPlan plan_network(const Dnnl& dnnl, const engine::TowerSpec& spec);

}  // namespace cifar_mpi::cpu
