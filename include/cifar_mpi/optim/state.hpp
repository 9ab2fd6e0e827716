#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cifar_mpi/optim/step_math.hpp"

/// The table of a run's state, which steps change. All code that allocates, saves, reads, checks or compares
/// state iterates over its rows.
namespace cifar_mpi::optim {

enum class StateRole : std::uint8_t { weights, average, momentum, moment1, moment2, outer_momentum, slow };
inline constexpr std::size_t kStateRoles = 7;
/// The most rows of an optimizer.
inline constexpr std::size_t kMostOptimizerRows = 2;

/// One block of the flat layout (engine/layout.hpp): a value for each parameter.
struct StateRow {
  StateRole role;
  const char* group;              ///< of the checkpoint file: "/model"
  const char* running = nullptr;  ///< the group of its running statistics; null: there are none in this row
  const char* meaning;            ///< an attribute there
  const char* what;               ///< in messages: "the weights"
  bool compared = true;           ///< ranks compare a hash of it; false if the row follows from compared rows
  bool of_optimizer = false;      ///< its rule keeps it
  bool from_zero = false;         ///< begins with zeros; the other rows begin with the initial weights
};

/// The rows of a run with this optimizer, in the order of the checkpoint file. The optimizer's own rows are
/// in the order of its rule; the outer momentum of local steps and the slow weights of lookahead, if any, are last.
std::vector<StateRow> state_rows(OptimizerKind optimizer, bool outer_momentum = false, bool slow = false);

}  // namespace cifar_mpi::optim
