#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "cifar_mpi/engine/arena.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cuda/matmul.hpp"
#include "cuda/optimizer.hpp"

namespace cifar_mpi::cuda {

class Device;

/// The tasks of hidden matrices with muon (engine::Backend::matrix_tasks), and their products by cuBLASLt, which the
/// tasks refer to.
class MatrixProducts {
 public:
  /// Partial sums, a sum and a counter of zeros, which all matrices may share.
  static constexpr std::size_t kScratchBytes = (kUpdateBlocks + 2) * sizeof(double);

  std::vector<engine::Task> tasks(Device& device, const engine::UpdateBinding& binding,
                                  const engine::Matrix& matrix, std::byte* scratch, engine::Arena& arena);
  /// The products planned so far: one per shape, however many steps and matrices use it.
  std::size_t planned() const { return products_.size(); }

 private:
  const Matmul& plan(Device& device, const std::string& name, const MatmulShape& shape);

  std::deque<Matmul> products_;
};

}  // namespace cifar_mpi::cuda
