#pragma once

#include <functional>

#include "cifar_mpi/base/run_fingerprint.hpp"
#include "cifar_mpi/comm/heartbeat.hpp"
#include "cifar_mpi/evaluation/evaluator.hpp"
#include "cifar_mpi/step/step.hpp"
#include "cifar_mpi/train/session.hpp"

namespace cifar_mpi::train {

/// The finalized programs of a run, and its evaluation.
struct Programs {
  std::unique_ptr<engine::Runner> step;  ///< from the run's first step on
  std::unique_ptr<engine::Runner>
      local_steps;  ///< if gradients are exchanged at first: from sizes.local_from on
  std::unique_ptr<engine::Runner>
      histograms;  ///< counts parameters and gradients between steps; rank 0's, or null
  std::optional<evaluation::Evaluator> evaluator;
};

/// What a run owns on one rank. Members are in the order of construction; they are destroyed in reverse:
/// programs, then memory, then the device.
struct SessionState {
  SessionState(config::TrainConfig config, const comm::World& world, const Log& log, std::atomic<int>& asked)
      : plan(std::move(config), world, log), requests(asked) {}

  step::StepContext context() { return {plan, device, blocks, *blocks.update}; }

  step::Plan plan;
  step::Device device;
  step::Blocks blocks;
  Programs programs;

  std::atomic<int>& requests;
  comm::Heartbeat unwatched;
  comm::Heartbeat* heart = &unwatched;
  std::function<void()> show_step = [] {};  ///< to the watchdog, whenever programs.step changes
};

/// The work of Session's constructor; see there.
std::unique_ptr<SessionState> set_up(config::TrainConfig config, const Directory& run,
                                     const comm::World& world, const Log& log,
                                     const comm::PlatformFactory& make_platform, std::atomic<int>& requests,
                                     const selfcheck::SelfCheck* check = nullptr);

/// The loop over steps, from plan.progress.step to the end. `last_end` as Session::run has it.
void run_loop(SessionState& state, const std::string& last_end = {});

/// The settings that are resolved at start and affect bits. For `auto` they hold the choice that was made.
RunFingerprint resolved_settings(const step::Plan& plan, const comm::Update& update);

/// What is taken over from a checkpoint meets the checks of the options that it stands for. Throws
/// Error{checkpoint} naming what no run of this program had: `content_hash` finds damage, not forgery.
void require_possible(const run::Progress& progress, const std::string& path,
                      const config::TrainConfig& config, const config::Sizes& sizes);

/// Takes over what the checkpoint's run had resolved wherever this one's user left it automatic: the
/// precision and the way of convolutions, and on the same number of ranks the threads and the all-reduce. Sets `adopted`.
void adopt(step::Plan& plan, const RunFingerprint& resolved);

}  // namespace cifar_mpi::train
