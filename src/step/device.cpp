#include <algorithm>
#include <functional>
#include <sstream>
#include <stdexcept>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/comm/server_update.hpp"
#include "step/hidden_matrices.hpp"
#include "step/step_parts.hpp"

/// Plans the network for a backend, alike on all ranks, and creates the update.
namespace cifar_mpi::step {

std::string Device::plan_text() const {
  std::string text = tower->plan_text();
  for (const auto& [size, smaller_tower] : smaller) {
    std::istringstream lines(smaller_tower->plan_text());
    for (std::string line; std::getline(lines, line);) text += concat(size, 'x', size, ' ', line, '\n');
  }
  return text;
}

void open_device(const Plan& plan, Device& device, const comm::PlatformFactory& make_platform) {
  comm::Platform platform = make_platform(backend_options(plan));
  device.backend = std::move(platform.backend);
  device.collectives = std::move(platform.collectives);
}

void plan_network(Plan& plan, Device& device) {
  config::TrainConfig& config = plan.config;
  config.precision = device.backend->resolve(config.precision);
  const engine::TowerSpec spec{&plan.network.net, &plan.network.params, plan.sizes.batch / plan.sizes.parts,
                               config.precision, config.conv};
  device.smaller.clear();
  device.tower = std::make_unique<lower::Tower>(*device.backend, spec);
  device.layout = device.tower->layout();
  for (const auto& [size, net] : plan.smaller) {
    engine::TowerSpec smaller = spec;
    smaller.net = &net;
    smaller.like = &device.tower->kernels();
    const auto [place, is_new] =
        device.smaller.emplace(size, std::make_unique<lower::Tower>(*device.backend, smaller));
    place->second->require_same_memory(*device.tower);
  }
  device.arena.emplace([&backend = *device.backend](std::size_t bytes) { return backend.allocate(bytes); });
}

std::vector<std::string> agree_on_kernels(Plan& plan, Device& device) {
  std::vector<std::string> slower;
  const comm::World& computing = plan.computing();
  plan.world.together([&] {
    if (plan.serves() || !device.collectives.agree_on_kernels) return;
    for (bool again = true; again;) {
      comm::KernelAgreement agreed = device.collectives.agree_on_kernels(computing);
      slower = std::move(agreed.slower);
      again = agreed.again;
      if (again) computing.together([&] { plan_network(plan, device); });
    }
  });
  return slower;
}

namespace {

std::unique_ptr<comm::Update> make_all_reduce_update(const Plan& plan, const Device& device) {
  const config::TrainConfig& config = plan.config;
  const std::string name =
      config.reproducible ? std::string(comm::fixed_tree_collective()) : config.all_reduce;
  std::unique_ptr<comm::Collective> collective = device.collectives.make(name, plan.world, config.wire);
  const bool overlap = comm::resolve_overlap(config.overlap, plan.world, device.collectives.device);
  comm::AllReduceSettings settings{config.bucket_mib, config.wire, overlap};
  if (config.update == comm::UpdateKind::local) settings.blocks = exchanged_blocks(plan.config);
  // Two per channel of one layer, which all layers have in the statistics together.
  if (config.sync_batch_norm) settings.rank_sum_floats = device.layout.running_floats;
  if (shares_matrices(plan, device)) settings.rank_sum_floats += device.layout.trained_floats;
  return std::make_unique<comm::AllReduceUpdate>(std::move(collective), device.layout, settings);
}

/// The first step after `done` at which all ranks synchronize.
std::function<std::uint64_t(std::uint64_t)> meetings(const Plan& plan) {
  std::vector<std::uint64_t> every{eval_every(plan)};
  for (const std::int64_t steps : {plan.config.checkpoint_every, plan.config.check_every})
    every.push_back(static_cast<std::uint64_t>(steps));
  return [every, total = plan.sizes.total_steps](std::uint64_t done) {
    std::uint64_t next = done < total ? total : done + 1;
    for (const std::uint64_t steps : every) next = std::min(next, (done / steps + 1) * steps);
    return next;
  };
}

std::unique_ptr<comm::Update> make_server_update(const Plan& plan, const Device& device,
                                                 const Blocks& blocks) {
  plan.world.together([&] {
    if (plan.workers && device.collectives.compare_devices) device.collectives.compare_devices(*plan.workers);
  });
  const bool overlap = comm::resolve_overlap(plan.config.overlap, plan.world, false);  // through the hosts
  return comm::make_server_update(
      plan.world, device.layout,
      {plan.config.servers, overlap, &blocks.request_word, plan.config.aggregation, meetings(plan),
       plan.progress.batches, device.collectives.device ? device.backend.get() : nullptr});
}

std::unique_ptr<comm::Update> make_update(const Plan& plan, const Device& device, Blocks& blocks) {
  switch (plan.config.update) {
    case comm::UpdateKind::all_reduce:
    case comm::UpdateKind::local:
      return make_all_reduce_update(plan, device);
    case comm::UpdateKind::server:
      return make_server_update(plan, device, blocks);
  }
  throw std::logic_error("an unknown way to update");
}

}  // namespace

void open_update(const Plan& plan, const Device& device, Blocks& blocks) {
  blocks.update = make_update(plan, device, blocks);
  blocks.update->allocate(control_layout(plan, device).floats());
}

void plan_device(Plan& plan, Device& device, const comm::PlatformFactory& make_platform) {
  open_device(plan, device, make_platform);
  if (!plan.serves()) plan_network(plan, device);
}

}  // namespace cifar_mpi::step
