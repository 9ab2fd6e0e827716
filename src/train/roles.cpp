#include "train/roles.hpp"

#include <list>
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

/// By worker; collective. Empty where each has computed one for every step.
std::vector<std::uint64_t> batches_computed(const SessionState& state) {
  if (!state.skips()) return {};
  std::uint64_t mine = 0;
  state.backend->copy(reinterpret_cast<std::byte*>(&mine), state.batch_counter.data(), sizeof mine);
  std::vector<std::uint64_t> batches = state.world.gather(mine);
  batches.resize(static_cast<std::size_t>(state.sizes.workers));
  return batches;
}

/// Floats of a block on the host, and back.
class HostCopy {
 public:
  HostCopy(engine::Backend& backend, std::span<float> block)
      : backend_(backend), block_(std::as_writable_bytes(block)), values_(block.size()) {
    backend_.copy(bytes().data(), block_.data(), block_.size());
  }
  std::span<float> values() { return values_; }
  void write_back() { backend_.copy(block_.data(), bytes().data(), block_.size()); }

 private:
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(values_)); }

  engine::Backend& backend_;
  std::span<std::byte> block_;
  std::vector<float> values_;
};

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

void complete_state(SessionState& state) {
  if (state.config.update != comm::UpdateKind::server) return;  // every rank has made all of it
  const engine::ParamLayout& layout = state.layout;
  std::list<HostCopy> copies;
  std::vector<std::span<float>> blocks, shared;
  const auto copy = [&](float* block, std::size_t floats) {
    return copies.emplace_back(*state.backend, std::span(block, floats)).values();
  };
  for (const optim::StateRow& row : state.state.rows()) {
    float* const block = state.state[row.role].as<float>();
    // All that compute have the weights, and what is wrong with a rank's must not be mended unseen.
    if (row.role != optim::StateRole::weights) blocks.push_back(copy(block, layout.trained_floats));
    if (state.skips() && row.running != nullptr)
      shared.push_back(copy(block + layout.running_begin(), layout.running_floats));
  }
  state.update->complete(blocks, shared);
  for (HostCopy& changed : copies) changed.write_back();
  state.progress.batches = batches_computed(state);
}

}  // namespace cifar_mpi::train
