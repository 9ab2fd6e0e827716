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
  bool wants_grad = false;
  std::vector<std::size_t> readers;  ///< nodes; one that reads it twice stands there twice
  bool masked = false;  ///< its gradient is to be masked where it is not positive, by a task of its own
};

struct Node {
  std::unique_ptr<engine::Group> group;
  std::vector<std::size_t> inputs;  ///< values
  std::size_t output = 0;           ///< value
  std::vector<std::size_t> params;  ///< ParamTable indices, as in the contract
  double flops = 0.0;               ///< of one forward pass over the batch, without taps outside the image
  bool mask_src = false;            ///< as in engine::Operands
  bool mask_dst = false;
  std::string layer;  ///< whose output it gives: the last that is no ReLU, if there is one; empty: a reorder
  Extent extent;      ///< of that
};

/// Value 0 is the image. Each node stands behind those whose outputs it reads.
struct LoweredGraph {
  std::vector<LoweredValue> values;
  std::vector<Node> nodes;
  std::size_t logits = 0;  ///< the value that the loss reads, in its format
};

/// Asks the backend for the longest match at each operation (what a match reads besides comes first), inserts a
/// reorder where a reader wants another format than the value has (once per format), and decides who masks the
/// gradient of each ReLU's output: the only reader on its way if it can, behind a pooling if the reader passes the
/// mask on, else the producer on its way if it can, else a task of its own behind the sum of the readers' gradients.
LoweredGraph lower_graph(const engine::TowerKernels& kernels, const engine::TowerSpec& spec);

}  // namespace cifar_mpi::lower
