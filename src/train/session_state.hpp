#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cifar_mpi/base/run_fingerprint.hpp"
#include "cifar_mpi/comm/heartbeat.hpp"
#include "cifar_mpi/evaluation/evaluator.hpp"
#include "cifar_mpi/step/step.hpp"
#include "cifar_mpi/train/session.hpp"
#include "run/resume.hpp"

namespace cifar_mpi::train {

/// The finalized programs of a run, and its evaluation.
struct Programs {
  /// A program that replaces `step`.
  struct Next {
    std::uint64_t from = 0;                ///< completed steps
    std::unique_ptr<engine::Runner> step;  ///< null: the earlier one of this kind
    step::StepKind kind;
    std::string text;  ///< for the log: what is different from there on
  };
  std::unique_ptr<engine::Runner> step;
  step::StepKind kind;  ///< of `step`
  std::deque<Next>
      later;  ///< in order: after --local-after epochs, and where image sizes change or biases freeze
  /// Takes the first of `later`; returns its text. A later part of the run of the same kind keeps the previous
  /// program.
  std::string change() {
    const auto again = std::ranges::find_if(
        later, [this](const Next& next) { return next.step == nullptr && next.kind == kind; });
    if (again != later.end()) again->step = std::move(step);
    Next next = std::move(later.front());
    later.pop_front();
    step = std::move(next.step);
    kind = next.kind;
    return std::move(next.text);
  }
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

// What the log says when a run starts.

/// ", whitening/biases frozen"; empty if all trained parameters have gradients in such steps.
std::string frozen_text(const step::Plan& plan, const step::StepKind& kind);

/// Model, data, schedule, length and notes. Rank 0 logs it; it is a worker, and a server lacks some of these facts.
void describe_run(const step::Plan& plan, const step::Device& device, const comm::Update& update,
                  const run::Start& start);

/// `slower`: one line per kernel that is not the first choice. Rank 0 logs it, and rank 0 computes.
void describe_kernels(const step::Plan& plan, const step::Device& device,
                      const std::vector<std::string>& slower);

}  // namespace cifar_mpi::train
