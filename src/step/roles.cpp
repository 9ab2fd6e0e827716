#include <list>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/step/step.hpp"

namespace cifar_mpi::step {
namespace {

constexpr std::string_view kPrecision = "the precision";

std::string memory_of(const model::Param& param) { return concat("the memory of ", param.name); }

RunFingerprint kernels_of(const Plan& plan, const Device& device) {
  RunFingerprint kernels{{std::string(kPrecision), std::string(to_string(plan.config.precision))}};
  std::istringstream lines(device.plan_text());
  for (std::string line; std::getline(lines, line);)
    kernels.emplace_back(concat("line ", kernels.size(), " of the kernel plan"), line);
  for (std::size_t p = 0; p < plan.network.params.size(); ++p)
    kernels.emplace_back(memory_of(plan.network.params[p]), std::to_string(device.layout.entries[p].floats));
  return kernels;
}

void adopt_kernels(Plan& plan, Device& device, const RunFingerprint& kernels) {
  plan.config.precision = find_name<engine::Precision>(*find_item(kernels, kPrecision)).value();
  for (const model::Param& param : plan.network.params) {
    const auto floats = static_cast<std::size_t>(find_number(kernels, memory_of(param)).value());
    engine::append(device.layout, floats, param.role);
  }
}

/// By worker; collective. Empty if each worker computed one batch for every step.
std::vector<std::uint64_t> batches_computed(const Plan& plan, const Device& device, const Blocks& blocks) {
  if (!plan.sizes.partial_aggregation()) return {};
  std::uint64_t mine = 0;
  device.backend->copy(&mine, blocks.batch_counter.data(), sizeof mine);
  std::vector<std::uint64_t> batches = plan.world.gather(mine);
  batches.resize(static_cast<std::size_t>(plan.sizes.workers));
  return batches;
}

/// Copies the floats of a block to the host, and back.
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

void part_workers(Plan& plan) {
  if (plan.sizes.workers < plan.world.size())
    plan.workers = comm::World::first(plan.world, plan.sizes.workers);
}

void share_kernels(Plan& plan, Device& device) {
  RunFingerprint kernels;
  if (!plan.serves()) kernels = kernels_of(plan, device);
  RunFingerprint first = kernels;
  plan.world.broadcast(first);
  if (plan.serves()) {
    adopt_kernels(plan, device, first);
    kernels = std::move(first);
  }
  plan.world.require_equal(ErrorKind::device, kernels, "run on machines of one kind");
}

void share_state(const Plan& plan, const Device& device, const StateTable& state) {
  if (plan.sizes.workers == plan.world.size()) return;
  for (const optim::StateRow& row : state.rows()) {
    const Buffer& block = state[row.role];
    std::vector<std::byte> bytes(block.size());
    if (plan.world.rank() == 0) device.backend->copy(bytes.data(), block.data(), bytes.size());
    plan.world.broadcast(bytes);
    if (plan.serves()) device.backend->copy(block.data(), bytes.data(), bytes.size());
  }
}

void complete_state(Plan& plan, const Device& device, Blocks& blocks) {
  if (plan.config.update != comm::UpdateKind::server) return;  // every rank has all rows
  const engine::ParamLayout& layout = device.layout;
  std::list<HostCopy> copies;
  std::vector<std::span<float>> changed, shared;
  const auto copy = [&](float* block, std::size_t floats) {
    return copies.emplace_back(*device.backend, std::span(block, floats)).values();
  };
  for (const optim::StateRow& row : blocks.state.rows()) {
    float* const block = blocks.state[row.role].as<float>();
    // All workers have the weights; a rank's wrong weights must not be overwritten silently.
    if (row.role != optim::StateRole::weights) changed.push_back(copy(block, layout.trained_floats));
    if (plan.sizes.partial_aggregation() && row.running != nullptr)
      shared.push_back(copy(block + layout.running_begin(), layout.running_floats));
  }
  blocks.update->complete(changed, shared);
  for (HostCopy& one : copies) one.write_back();
  plan.progress.batches = batches_computed(plan, device, blocks);
}

}  // namespace cifar_mpi::step
