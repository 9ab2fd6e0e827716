#include <algorithm>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "train/session_state.hpp"

namespace cifar_mpi::train {

RunFingerprint resolved_settings(const step::Plan& plan, const comm::Update& update) {
  RunFingerprint settings{
      {"precision", std::string(to_string(plan.config.precision))},
      {"conv", std::string(to_string(plan.config.conv))},
      {"threads", std::to_string(plan.config.threads)},
      {"conv threads", std::to_string(plan.conv_threads > 0 ? plan.conv_threads : plan.config.threads)},
      {"ranks", std::to_string(plan.sizes.workers)}};
  if (!plan.config.reproducible) settings.emplace_back("batches per step", std::to_string(plan.sizes.parts));
  settings.emplace_back("update", std::string(to_string(plan.config.update)));
  for (auto& setting : update.settings()) settings.push_back(std::move(setting));
  if (plan.config.nccl_algorithm != "auto")
    settings.emplace_back("nccl algorithm", plan.config.nccl_algorithm);
  if (plan.config.nccl_nvls) settings.emplace_back("nccl nvls", "on");
  for (auto& setting : evaluation::moments_of(plan.network.augment)) settings.push_back(std::move(setting));
  return settings;
}

void require_possible(const run::Progress& progress, const std::string& path,
                      const config::TrainConfig& config, const config::Sizes& sizes) {
  constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 53;  // the largest step a schedule can count
  const auto refuse = [&](std::string_view what, std::string_view why) {
    throw Error(ErrorKind::checkpoint, path, " is not of a run of this program: ", what, ": ", why);
  };
  if (progress.step > kMostSteps) refuse(concat("its step is ", progress.step), "no run is that long");
  const auto round = static_cast<std::uint64_t>(sizes.local_steps);
  if (progress.step > sizes.local_from && (progress.step - sizes.local_from) % round != 0) {
    refuse(concat("its step is ", progress.step),
           concat("averagings are ", round, " steps apart from step ", sizes.local_from, " on"));
  }
  if (const auto* ranks = find_item(progress.resolved, "ranks")) {
    const auto value = find_number(progress.resolved, "ranks");
    const std::size_t counted = progress.batches.size();
    if (counted > 0 && value != static_cast<std::int64_t>(counted))
      refuse(concat("its ranks are ", *ranks), concat("it counts the batches of ", counted, " workers"));
    if (counted == 0 && (!value || *value < 1 || static_cast<std::uint64_t>(*value) > sizes.global_batch))
      refuse(concat("its ranks are ", *ranks),
             concat("a step of ", sizes.global_batch, " samples has 1 for each"));
  }
  for (const char* const item : {"threads", "conv threads"}) {
    const auto* const threads = find_item(progress.resolved, item);
    if (threads == nullptr) continue;
    const auto value = find_number(progress.resolved, item);
    config::TrainConfig adopted = config;
    adopted.threads = value && std::in_range<int>(*value) ? static_cast<int>(*value) : -1;
    try {
      check(adopted);
    } catch (const Error& error) {
      refuse(concat("its ", item, " are ", *threads), error.what());
    }
  }
}

void adopt(step::Plan& plan, const RunFingerprint& resolved) {
  using engine::ConvMethod;
  using engine::Precision;
  config::TrainConfig& config = plan.config;
  plan.adopted = {};
  if (const auto* value = find_item(resolved, "precision");
      value && config.precision == Precision::automatic) {
    config.precision = find_name<Precision>(*value).value_or(Precision::automatic);
    plan.adopted.precision = config.precision != Precision::automatic;
  }
  if (config.conv == ConvMethod::automatic && !resolved.empty()) {
    // A checkpoint without it implies this value.
    const auto* const value = find_item(resolved, "conv");
    config.conv = value ? find_name<ConvMethod>(*value).value_or(ConvMethod::automatic) : ConvMethod::direct;
    plan.adopted.conv = config.conv != ConvMethod::automatic;
  }
  if (find_number(resolved, "ranks") != plan.sizes.workers) return;
  const auto threads_of = [&](const char* item) {
    const auto value = find_number(resolved, item);
    return value && std::in_range<int>(*value) ? std::max(static_cast<int>(*value), 0) : 0;
  };
  const int threads = threads_of("threads"), conv_threads = threads_of("conv threads");
  if (config.threads == 0) config.threads = threads;
  // Kept apart, because a start with other threads keeps the convolutions of the first start.
  plan.conv_threads = conv_threads > 0 ? conv_threads : threads;
  const auto* nccl = find_item(resolved, "nccl algorithm");
  if (nccl && config.nccl_algorithm == "auto" && (*nccl == "ring" || *nccl == "tree")) {
    config.nccl_algorithm = *nccl;
  }
  // Auto's choice by length has no name; on the same nodes it chooses the same again.
  const auto* all_reduce = find_item(resolved, "all-reduce");
  if (all_reduce && config.all_reduce == "auto" && (!config.reproducible || *all_reduce == "doubling") &&
      comm::find_collective(comm::collectives(), *all_reduce) != nullptr) {
    config.all_reduce = *all_reduce;
    plan.adopted.all_reduce = true;
  }
}

}  // namespace cifar_mpi::train
