#include <fmt/core.h>

#include <optional>
#include <span>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/selfcheck/self_check.hpp"
#include "run/self_check_record.hpp"

namespace cifar_mpi::selfcheck {
namespace {

using run::SelfCheckRecord;
using run::SelfCheckResult;

/// The settings to check. Of those that the run adopts from a checkpoint, only the ones that may differ from
/// the GPU's own choice matter: a checkpoint from a CPU may name convolutions and all-reduces that no GPU
/// has, and automatic precision is bf16 (fp32 below compute capability 8.0, so that the second start checks
/// once more).
config::TrainConfig checked_config(const step::Plan& plan) {
  config::TrainConfig config = plan.config;
  if (plan.adopted.conv) config.conv = engine::ConvMethod::automatic;
  if (plan.adopted.precision && config.precision == engine::Precision::bf16)
    config.precision = engine::Precision::automatic;
  if (plan.adopted.all_reduce && config.all_reduce != comm::fixed_tree_collective())
    config.all_reduce = "auto";
  return config;
}

/// A hash of everything that chooses kernels: settings, machine, driver and libraries.
std::string key_of(const step::Plan& plan, const std::string& devices) {
  const config::TrainConfig config = checked_config(plan);
  const std::string text =
      concat(devices, '\n', version(), ' ', git_revision(), '\n', config.model, ' ',
             to_string(plan.network.augment.output()), ' ', plan.sizes.batch, ' ', plan.sizes.parts, ' ',
             to_string(config.precision), ' ', to_string(config.augment), ' ',
             to_string(config.optimizer.kind), ' ', to_string(config.runner), ' ', config.all_reduce, ' ',
             to_string(config.update), ' ', config.local.steps, ' ', to_string(config.wire), ' ',
             config.nccl_algorithm, ' ', config.nccl_nvls, ' ', config.reproducible, ' ',
             to_string(config.conv), ' ', config.lookahead > 0, ' ', config.clip_norm > 0.0);
  return fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(text))));
}

/// Rank 0's record, on all ranks; empty if its key differs.
std::optional<SelfCheckRecord> find_record(const step::Plan& plan, const comm::World& ranks,
                                           const std::string& key) {
  RunFingerprint told;
  if (ranks.rank() == 0) {
    const auto record = run::read_self_check(*plan.run);
    if (record && record->key == key) told.emplace_back(to_string(record->result), record->time);
  }
  ranks.broadcast(told);
  if (told.empty()) return std::nullopt;
  const auto result = find_name<SelfCheckResult>(told.front().first).value();
  return SelfCheckRecord{result, key, told.front().second, {}};
}

void write_record(const step::Plan& plan, const comm::World& ranks, const SelfCheckRecord& record) {
  ranks.together([&] {
    if (ranks.rank() != 0) return;
    run::write_self_check(*plan.run, record);
  });
}

/// Takes the other device or ends the run; drops the settings of the device that failed.
comm::PlatformFactory give_way(step::Plan& plan, const SelfCheck& check, const std::string& why,
                               ErrorKind kind = ErrorKind::device) {
  const std::string place = run::self_check_path(plan.config.run_dir);
  if (!check.instead) {
    if (kind == ErrorKind::comm) throw comm::AgreedError(kind, "no GPU is used: ", why, " (", place, ')');
    throw comm::AgreedError(kind, "the GPU is not taken: ", why, " (", place,
                            "); mend it, or train on the CPU with --device cpu");
  }
  plan.log.warn(concat("device: cpu, because ", why, " (", place, "); --device cuda checks again"));
  plan.self_check = concat("on the CPU, because ", why);
  if (comm::find_collective(comm::collectives(), plan.config.all_reduce) == nullptr)
    plan.config.all_reduce = "auto";
  if (plan.config.runner == engine::RunnerKind::graph) plan.config.runner = engine::RunnerKind::automatic;
  return check.instead;
}

/// Runs while the watchdogs show the activity.
SelfCheckReport run_check(const step::Plan& plan, const comm::World& ranks,
                          const comm::PlatformFactory& asked, const SelfCheck& check) {
  const auto enter = [&](comm::Activity activity) {
    if (check.heart != nullptr) check.heart->activity.store(activity, std::memory_order_relaxed);
  };
  enter(comm::Activity::checking);
  SelfCheckReport report = check_device(checked_config(plan), plan.info, ranks, asked, check);
  enter(comm::Activity::starting);
  return report;
}

/// The run then uses lanes, unless it asks for a runner without graphs anyway.
void do_without_graphs(step::Plan& plan, const std::string& why) {
  if (plan.config.runner == engine::RunnerKind::automatic) plan.config.runner = engine::RunnerKind::lanes;
  plan.log.warn(concat("self-check: this run does without graphs, because ", why,
                       "; each kernel then costs the host an estimated 3 to 6 us"));
}

/// Checks, logs the result and records it. A stop is no verdict: the record then still says that the check
/// runs.
comm::PlatformFactory check_now(step::Plan& plan, const comm::World& ranks,
                                const comm::PlatformFactory& asked, const SelfCheck& check,
                                SelfCheckRecord record) {
  record.time = wall_time();
  const std::string devices = record.text;
  write_record(plan, ranks, record);
  const double began = steady_seconds();
  const SelfCheckReport report = run_check(plan, ranks, asked, check);
  const std::string seconds = fmt::format("{:.1f} s", steady_seconds() - began);
  if (report.good) {
    record.result = !report.no_graph.empty()  ? SelfCheckResult::on_lanes
                    : !report.refused.empty() ? SelfCheckResult::refused
                                              : SelfCheckResult::passed;
  }
  if (!report.faults.empty()) record.result = SelfCheckResult::failed;
  for (const std::string& line : report.table) record.text += concat('\n', line);
  record.text += '\n';
  write_record(plan, ranks, record);
  for (const auto* const lines : {&report.faults, &report.stops, &report.slow}) {
    for (const std::string& line : *lines) plan.log.warn(concat("self-check: ", line));
  }
  if (!report.faults.empty())
    return give_way(plan, check, concat("its self-check failed on ", report.faults.front()));
  if (!report.good) {
    return give_way(
        plan, check,
        concat("its self-check was stopped on ", report.stops.front(), "; the next start checks again"),
        report.stopped_by);
  }
  if (record.result == SelfCheckResult::on_lanes) do_without_graphs(plan, report.no_graph.front());
  if (record.result == SelfCheckResult::refused) do_without_graphs(plan, report.refused.front());
  const char* const judged = check.judge ? "" : "; without oneDNN there is no CPU to compare gradients with";
  plan.log.info(concat("self-check: passed in ", seconds, " (", run::self_check_path(plan.config.run_dir),
                       ")", judged));
  plan.self_check = concat("passed ", record.time, judged, ": ", devices);
  return asked;
}

/// On the ranks that compute.
comm::PlatformFactory platform_proven_on(const comm::World& ranks, step::Plan& plan,
                                         const comm::PlatformFactory& asked, const SelfCheck& check) {
  const std::string devices = devices_of(step::backend_options(plan), ranks, check);
  const std::string key = key_of(plan, devices);
  const std::optional<SelfCheckRecord> known = find_record(plan, ranks, key);
  const bool on_lanes = known && known->result == SelfCheckResult::on_lanes;
  if (known && (known->result == SelfCheckResult::passed || on_lanes)) {
    if (on_lanes) do_without_graphs(plan, concat("the self-check at ", known->time, " found them wrong"));
    plan.log.info(concat("self-check: passed at ", known->time, " on this device (",
                         run::self_check_path(plan.config.run_dir), ")"));
    plan.self_check = concat("passed ", known->time, ": ", devices);
    return asked;
  }
  SelfCheckRecord begun{SelfCheckResult::running, key, {}, devices};
  if (known) {
    const SelfCheckResult last = known->result;
    const bool final = last == SelfCheckResult::failed || last == SelfCheckResult::hung_twice;
    if (final && !check.asked_for) {
      const char* const what = last == SelfCheckResult::failed ? "failed" : "hung twice, the last time";
      return give_way(
          plan, check,
          concat("its self-check ", what, " at ", known->time, " with this driver and these libraries"));
    }
    const bool hung = last == SelfCheckResult::hung || last == SelfCheckResult::hung_twice;
    const char* const what = last == SelfCheckResult::failed    ? "failed"
                             : last == SelfCheckResult::refused ? "could make no graph"
                             : hung                             ? "hung"
                                                                : "was stopped";
    plan.log.info(concat("self-check: the one at ", known->time, ' ', what, "; checking again"));
    if (hung || last == SelfCheckResult::running_again) begun.result = SelfCheckResult::running_again;
  }
  return check_now(plan, ranks, asked, check, std::move(begun));
}

}  // namespace

comm::PlatformFactory proven_platform(step::Plan& plan, const comm::PlatformFactory& asked,
                                      const SelfCheck* check) {
  plan.self_check = "not needed";
  if (check == nullptr) return asked;
  if (plan.config.self_check == config::SelfCheckMode::off) {
    plan.log.info("self-check: left out (--self-check off)");
    plan.self_check = "left out";
    return asked;
  }
  if (plan.sizes.workers == plan.world.size()) return platform_proven_on(plan.world, plan, asked, *check);
  // An error that the workers agree on is thrown on the servers, too.
  comm::PlatformFactory taken = asked;
  plan.world.together([&] {
    if (plan.workers) taken = platform_proven_on(*plan.workers, plan, asked, *check);
  });
  return taken;
}

int report_self_check(config::TrainConfig config, const comm::World& world, const Log& log,
                      const comm::PlatformFactory& make_platform, const SelfCheck& check) {
  config.data = "generated images";
  step::Plan plan(std::move(config), world, log);
  plan.info.image = {32, 32, 3};
  plan.info.label_names = data::cifar10_label_names();
  plan.info.train_count = 50'000;
  plan.info.test_count = 10'000;
  config::check(plan.config);
  step::resolve_threads(plan);
  log.info(concat("self-check of ", counted(world.size(), "rank"), ": model ", plan.config.model, ", batch ",
                  plan.config.batch_size));
  log.info(devices_of(step::backend_options(plan), world, check));
  const double began = steady_seconds();
  const SelfCheckReport report = run_check(plan, world, make_platform, check);
  for (const std::string& line : report.table) log.info(line);
  for (const auto* const lines :
       {&report.faults, &report.stops, &report.no_graph, &report.refused, &report.slow}) {
    for (const std::string& line : *lines) log.warn(concat("self-check: ", line));
  }
  const std::string seconds = fmt::format("{:.1f} s", steady_seconds() - began);
  log.info(concat(report.good ? "passed" : "FAILED", " in ", seconds));
  if (report.good) return 0;
  return exit_code(report.faults.empty() ? report.stopped_by : ErrorKind::device);
}

}  // namespace cifar_mpi::selfcheck
