#include "train/update_options.hpp"

#include <fmt/core.h>

#include <cmath>
#include <cstdlib>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::train {

void refuse(const std::string& text) { throw Error(ErrorKind::usage, text); }

namespace {

/// What servers leave no room for.
void check_server(const TrainConfig& config) {
  const TrainConfig standard;
  const auto not_with = [](const char* option, bool given) {
    if (given) refuse(concat(option, " goes with --update all-reduce, not with server"));
  };
  not_with("--all-reduce", config.all_reduce != standard.all_reduce);
  not_with("--bucket-mib", config.bucket_mib != standard.bucket_mib);
  not_with("--wire bf16", config.wire != standard.wire);
  not_with("--reproducible", config.reproducible);
  if (config.clip_norm > 0.0) {
    refuse(
        "--clip-norm does not go with --update server: it needs the norm of the whole gradient, of which "
        "each server has a part; leave it out, or choose --update all-reduce");
  }
}

/// NVLS is an algorithm of its own, and its sums have no fixed order.
void check_nvls(const TrainConfig& config) {
  if (!config.nccl_nvls) return;
  if (config.nccl_algorithm != "auto") {
    refuse(concat("--nccl-nvls does not go with --nccl-algo ", config.nccl_algorithm,
                  ", which is another algorithm; leave one of them out"));
  }
  if (config.reproducible) {
    refuse(
        "--nccl-nvls does not go with --reproducible: sums in NVLink switches have no fixed order; leave one "
        "of "
        "them out");
  }
}

}  // namespace

std::string exact(double value) {
  for (int digits = 6; digits < 17; ++digits) {
    std::string text = fmt::format("{:.{}g}", value, digits);
    if (std::strtod(text.c_str(), nullptr) == value) return text;  // std::stod throws for subnormals
  }
  return fmt::format("{:.17g}", value);
}

void check_update_options(const TrainConfig& config) {
  using comm::UpdateKind;
  const TrainConfig standard;
  const auto goes_with = [&](const char* option, bool given, const char* way) {
    if (given) refuse(concat(option, " goes with --update ", way, ", not with ", to_string(config.update)));
  };
  check_nvls(config);
  if (config.servers < 1) refuse(concat("--servers must be at least 1, not ", config.servers));
  optim::check(config.local);
  if (config.update != UpdateKind::server) {
    goes_with("--servers", config.servers != standard.servers, "server");
    goes_with("--aggregate", config.aggregation.pushes != 0 || config.aggregation.asynchronous, "server");
  }
  const auto goes_with_async = [&](const char* option, bool given) {
    if (given && !config.aggregation.asynchronous)
      refuse(concat(option,
                    " goes with --update server --aggregate async, where each push is a step of its own"));
  };
  goes_with_async("--max-staleness", config.aggregation.most_drift.has_value());
  goes_with_async("--staleness-lr", config.aggregation.scales_rate);
  goes_with_async("--arrival-order", config.aggregation.arrival_order.has_value());
  if (config.update != UpdateKind::local) {
    goes_with("--local-steps", config.local.steps != standard.local.steps, "local");
    goes_with("--outer", config.local.outer != standard.local.outer, "local");
    goes_with("--outer-lr", config.local.outer_rate != standard.local.outer_rate, "local");
    goes_with("--outer-momentum", config.local.outer_momentum != standard.local.outer_momentum, "local");
    goes_with("--local-after", config.local.after_epoch != standard.local.after_epoch, "local");
  }
  if (config.update == UpdateKind::server) check_server(config);
  if (config.update == UpdateKind::local && config.reproducible) {
    refuse(
        "--reproducible does not go with --update local: between averagings each rank has weights of its "
        "own, so "
        "their number is part of the result");
  }
}

void resolve_local_steps(const TrainConfig& config, double samples, Sizes& sizes) {
  if (config.update != comm::UpdateKind::local) return;
  sizes.local_steps = config.local.steps;
  const double exchanged = config.local.after_epoch * samples / static_cast<double>(sizes.global_batch);
  sizes.local_from = static_cast<std::uint64_t>(std::ceil(exchanged));
  const auto round = static_cast<std::uint64_t>(sizes.local_steps);
  if (sizes.local_from + round > sizes.total_steps) {
    refuse(concat("--local-steps ", round, " from step ", sizes.local_from + 1, " on (--local-after ",
                  config.local.after_epoch, ") end behind the last step of the run, ", sizes.total_steps,
                  "; give fewer, an earlier epoch or a longer run"));
  }
  const std::uint64_t left = (sizes.total_steps - sizes.local_from) % round;
  if (config.steps > 0 && left > 0) {
    refuse(concat("--steps ", config.steps, " does not end with an averaging of --local-steps ", round,
                  "; give ", sizes.total_steps - left, " or ", sizes.total_steps - left + round));
  }
  sizes.total_steps -= left;
}

void add_update_options(RunFingerprint& items, const TrainConfig& config) {
  if (config.update != comm::UpdateKind::local) return;
  items.emplace_back("--update", std::string(to_string(config.update)));
  items.emplace_back("--local-steps", std::to_string(config.local.steps));
  items.emplace_back("--outer", std::string(to_string(config.local.outer)));
  items.emplace_back("--local-after", exact(config.local.after_epoch));
  if (config.local.outer == optim::OuterKind::average) return;
  items.emplace_back("--outer-lr", exact(config.local.outer_rate));
  items.emplace_back("--outer-momentum", exact(config.local.outer_momentum));
}

}  // namespace cifar_mpi::train
