#include "cifar_mpi/step/state_table.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/evaluation/network.hpp"

namespace cifar_mpi::step {

using optim::StateRow;

namespace {

constexpr std::size_t kFloatsAtOnce = std::size_t{1} << 16;  // floats; a copy of so many stays in the cache

/// Only an exponent of all ones carries into the sign bit. No branch, so that compilers vectorize it.
bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7F800000, kOne = 0x00800000, kCarry = 0x80000000;
  std::uint32_t seen = 0;
  for (const float value : values) seen |= (std::bit_cast<std::uint32_t>(value) & kExponent) + kOne;
  return (seen & kCarry) == 0;
}

/// The name of the first parameter, in forward order, that has a NaN or an infinity in this block of `layout`
/// ("conv1/weights"); empty when all are finite. A pass over the block, in backend memory.
std::string first_not_finite_in(engine::Backend& backend, const engine::ParamLayout& layout,
                                const model::ParamTable& params, const Buffer& block) {
  std::vector<float> piece(std::min(kFloatsAtOnce, layout.floats));
  for (std::size_t p = params.size(); p-- > 0;) {  // the table is in the order in which backward finishes
    const auto& entry = layout.entries[p];
    for (std::size_t at = 0; at < entry.floats; at += piece.size()) {
      const std::span<float> part = std::span(piece).first(std::min(piece.size(), entry.floats - at));
      backend.copy(part.data(), block.as<const float>() + entry.offset + at, part.size_bytes());
      if (!all_finite(part)) return params[p].name;
    }
  }
  return {};
}

}  // namespace

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
    tensors[row.role] = evaluation::export_block(backend, tower, params, (*this)[row.role]);
  }
  return tensors;
}

void StateTable::write(engine::Backend& backend, const lower::Tower& tower,
                       const run::StateTensors& tensors) const {
  for (const StateRow& row : rows_) {
    evaluation::import_block(backend, tower, tensors[row.role], (*this)[row.role]);
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
    const std::string name = first_not_finite_in(backend, layout, params, (*this)[row.role]);
    if (!name.empty()) return concat(row.what, " of ", name);
  }
  return {};
}

}  // namespace cifar_mpi::step
