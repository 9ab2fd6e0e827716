#pragma once

#include <array>
#include <span>
#include <vector>

#include "cifar_mpi/lower/tower.hpp"
#include "cifar_mpi/optim/state.hpp"
#include "cifar_mpi/run/checkpoint.hpp"

namespace cifar_mpi::step {

/// The rows that a run needs (optim::state_rows) as flat blocks of a tower's layout in backend memory.
class StateTable {
 public:
  void allocate(engine::Backend& backend, const engine::ParamLayout& layout,
                std::vector<optim::StateRow> rows);
  std::span<const optim::StateRow> rows() const { return rows_; }
  /// The row must exist.
  const Buffer& operator[](optim::StateRole role) const { return blocks_[static_cast<std::size_t>(role)]; }

  /// All rows as logical tensors in the order of the ParamTable, and back.
  run::StateTensors read(engine::Backend& backend, const lower::Tower& tower,
                         const model::ParamTable& params) const;
  void write(engine::Backend& backend, const lower::Tower& tower, const run::StateTensors& tensors) const;

  /// A hash of the rows that ranks compare.
  std::uint64_t hash(engine::Backend& backend) const;
  /// "the weights of conv1/biases": the first in forward order, row by row, that is not finite; else empty.
  std::string first_not_finite(engine::Backend& backend, const engine::ParamLayout& layout,
                               const model::ParamTable& params) const;

 private:
  std::vector<optim::StateRow> rows_;
  std::array<Buffer, optim::kStateRoles> blocks_;
};

}  // namespace cifar_mpi::step
