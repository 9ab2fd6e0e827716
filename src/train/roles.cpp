#include "train/roles.hpp"

#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::train {
namespace {

constexpr std::string_view kPrecision = "the precision";

std::string room_of(const model::Param& param) { return concat("the room of ", param.name); }

RunFingerprint plan_of(const SessionState& state) {
  RunFingerprint plan{{std::string(kPrecision), std::string(to_string(state.config.precision))}};
  std::istringstream lines(state.tower->plan_text());
  for (std::string line; std::getline(lines, line);)
    plan.emplace_back(concat("line ", plan.size(), " of the kernel plan"), line);
  for (std::size_t p = 0; p < state.network.params.size(); ++p)
    plan.emplace_back(room_of(state.network.params[p]), std::to_string(state.layout.entries[p].floats));
  return plan;
}

void adopt_plan(SessionState& state, const RunFingerprint& plan) {
  state.config.precision = find_name<engine::Precision>(*find_item(plan, kPrecision)).value();
  for (const model::Param& param : state.network.params) {
    const auto floats = static_cast<std::size_t>(find_number(plan, room_of(param)).value());
    engine::append(state.layout, floats, param.role);
  }
}

}  // namespace

void part_workers(SessionState& state) {
  if (state.sizes.workers < state.world.size())
    state.workers = comm::World::first(state.world, state.sizes.workers);
}

void share_plan(SessionState& state) {
  RunFingerprint plan;
  if (!state.serves()) plan = plan_of(state);
  RunFingerprint first = plan;
  state.world.broadcast(first);
  if (state.serves()) {
    adopt_plan(state, first);
    plan = std::move(first);
  }
  state.world.require_equal(ErrorKind::device, plan, "run on machines of one kind");
}

void share_state(SessionState& state) {
  if (state.sizes.workers == state.world.size()) return;
  for (const optim::StateRow& row : state.state.rows()) {
    const Buffer& block = state.state[row.role];
    std::vector<std::byte> bytes(block.size());
    if (state.world.rank() == 0) state.backend->copy(bytes.data(), block.data(), bytes.size());
    state.world.broadcast(bytes);
    if (state.serves()) state.backend->copy(block.data(), bytes.data(), bytes.size());
  }
}

}  // namespace cifar_mpi::train
