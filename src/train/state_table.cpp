#include "train/state_table.hpp"

#include <utility>

#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/train/network.hpp"
#include "train/finite.hpp"

namespace cifar_mpi::train {

using optim::StateRow;

void StateTable::allocate(engine::Backend& backend, const engine::ParamLayout& layout,
                          std::vector<StateRow> rows) {
  rows_ = std::move(rows);
  for (const StateRow& row : rows_) {
    blocks_[static_cast<std::size_t>(row.role)] = backend.allocate(layout.floats * sizeof(float));
  }
}

run::StateTensors StateTable::read(engine::Backend& backend, const lower::Tower& tower,
                                   const model::ParamTable& params) const {
  run::StateTensors tensors;
  for (const StateRow& row : rows_) {
    tensors[row.role] = export_block(backend, tower, params, (*this)[row.role]);
  }
  return tensors;
}

void StateTable::write(engine::Backend& backend, const lower::Tower& tower,
                       const run::StateTensors& tensors) const {
  for (const StateRow& row : rows_) {
    import_block(backend, tower, tensors[row.role], (*this)[row.role]);
  }
}

std::uint64_t StateTable::hash(engine::Backend& backend) const {
  std::uint64_t hash = 0;
  for (const StateRow& row : rows_) {
    if (!row.compared) continue;
    const Buffer& block = (*this)[row.role];
    std::vector<std::byte> bytes(block.size());
    backend.copy(bytes.data(), block.data(), bytes.size());
    hash = hash_pair(hash, hash_bytes(bytes));
  }
  return hash;
}

std::string StateTable::first_not_finite(engine::Backend& backend, const engine::ParamLayout& layout,
                                         const model::ParamTable& params) const {
  for (const StateRow& row : rows_) {
    const std::string name = train::first_not_finite(backend, layout, params, (*this)[row.role]);
    if (!name.empty()) return concat(row.what, " of ", name);
  }
  return {};
}

}  // namespace cifar_mpi::train
