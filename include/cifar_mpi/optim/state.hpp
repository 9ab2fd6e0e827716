#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// The table of what a run carries from step to step. Whoever allocates, saves, reads, checks or compares
/// state walks these rows; nobody names a block by hand.
namespace cifar_mpi::optim {

enum class StateRole : std::uint8_t { weights, average };
inline constexpr std::size_t kStateRoles = 2;

/// One block of the flat layout (engine/layout.hpp): a value for each parameter.
struct StateRow {
  StateRole role;
  const char* group;    ///< of the checkpoint file: "/model"
  const char* meaning;  ///< an attribute there
  const char* what;     ///< in messages: "the weights"
  bool compared;        ///< ranks compare a hash of it; what follows from compared rows alone is not
};

/// In the order of the checkpoint file. Every row begins with the initial weights.
std::span<const StateRow> state_rows();

}  // namespace cifar_mpi::optim
