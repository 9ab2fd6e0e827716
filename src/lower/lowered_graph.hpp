#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"

/// A network as groups of operations that a backend has planned, with reorders where formats differ.
namespace cifar_mpi::lower {

/// A value in one format.
struct LoweredValue {
  engine::ValueFormat format;
  std::size_t of = 0;                ///< the network's value
  std::vector<std::size_t> readers;  ///< nodes; one that reads it twice appears twice
  bool masked = false;               ///< a task of its own masks its gradient where the value is not positive
};

struct Node {
  std::unique_ptr<engine::Group> group;
  std::vector<std::size_t> inputs;  ///< values
  std::size_t output = 0;           ///< value
  std::vector<std::size_t> params;  ///< ParamTable indices, as in the contract
  double flops = 0.0;               ///< of one forward pass over the batch, without taps outside the image
  bool mask_src = false;            ///< as in engine::Operands
  bool mask_dst = false;
  std::string layer;  ///< whose output this is: the last that is not a ReLU, if any; empty: a reorder
  Extent extent;      ///< of that output
};

/// Value 0 is the image. Each node comes after those whose outputs it reads.
struct LoweredGraph {
  std::vector<LoweredValue> values;
  std::vector<Node> nodes;
  std::size_t logits = 0;  ///< the value that the loss reads, in its format
};

/// Asks the backend for the longest match at each operation (its other inputs come first), inserts a reorder
/// where a reader needs another format than the value has (once per format), and decides where the gradient
/// of each ReLU's output is masked: in the only reader if it can, through a pooling if the reader supports
/// that, else in the producer if it can, else in a task of its own after the sum of the readers' gradients.
LoweredGraph lower_graph(const engine::TowerKernels& kernels, const engine::TowerSpec& spec);

}  // namespace cifar_mpi::lower
