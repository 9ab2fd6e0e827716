#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/program.hpp"

/// A way to update: from "these gradients are complete" to "the parameters of the next step are there".
namespace cifar_mpi::comm {

/// The ways there are; README.md of the room says when to use which.
enum class UpdateKind : std::uint8_t { all_reduce, server, local };
constexpr auto names_of(UpdateKind) {
  return std::to_array<Name<UpdateKind>>(
      {{"all-reduce", UpdateKind::all_reduce}, {"server", UpdateKind::server}, {"local", UpdateKind::local}});
}

/// Floats [begin, end) of the flat blocks, counted from the first parameter, multiples of 16.
struct ParamSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// One training step before the exchange between the ranks stands in it.
struct StepParts {
  std::vector<engine::Task> compute;  ///< control block to last backward task, in order
  std::vector<engine::Task> update;   ///< one per span of `spans`, in their order; reads what is summed there
  std::vector<engine::Task> finish;   ///< needs everything; in order
  std::span<float> control;           ///< what `allocate` gave: the control block, ...
  std::span<float> grads;             ///< ... which ends where the gradients begin
  std::span<float> params;            ///< the trained ones, which the update tasks change
  std::span<double> decay_sums;       ///< what each update task leaves for `finish` besides
  /// For servers: the step to do next, which `finish` moves on. A worker without which steps were made finds there the
  /// last of them, before `finish`.
  std::uint64_t* step = nullptr;
  /// The first step behind `done` after which all ranks must have the same parameters.
  std::function<std::uint64_t(std::uint64_t done)> next_meeting;
  /// Where there is one it reads all that is summed, and stands in front of all updates, which then wait for
  /// the last sum; else each stands behind the sum of its own span.
  std::optional<engine::Task> before_updates;
};

/// What may run while the compute lane goes on.
struct Concurrency {
  bool exchange =
      true;  ///< false: what is exchanged waits for the end of backward, to measure what that costs
  bool branches = true;  ///< false: tasks that say `concurrent` run in their place all the same
};

/// What servers have made of the workers' pushes, and what that took, since the program was built.
struct PushCounts {
  static constexpr std::size_t kStalenesses = 256;
  std::vector<std::uint64_t> applied, dropped;  ///< pushes, by worker
  /// Of asynchronous updates, how many were of each staleness, the last with all above it; else empty.
  std::vector<std::uint64_t> staleness;
  std::uint64_t most_stale = 0;
  std::vector<std::uint64_t> worker_bytes, server_bytes;  ///< of pushes and answers, by worker and by server
};

/// Everything between a step's gradients and its new parameters that depends on there being other ranks.
///
/// All of it is settled while the program is built: `append` puts the exchange between the step's own tasks,
/// and running is replay. What an update and the loop owe each other:
///
///   drain   when the program's runner has finished, nothing is under way, and all ranks that compute have the
///           same parameters: evaluation, checkpoints and the comparison of the ranks stand there, behind
///           `complete` where they need what the update tasks keep besides
///   agree   before the first task of `finish` the control block holds the sums over all ranks: every rank
///           finds the same step diverged, and takes every decision at the same step without asking
///   stop    a request to stop is a word of the control block, and so takes effect on all ranks at once
///
/// A rank that serves and holds no data gives `append` parts without compute tasks; its update receives the
/// gradients of its spans in their place and sends the parameters behind their update tasks, which only it
/// runs. Local steps are no way of their own: all those between two exchanges are compute tasks of one replay,
/// and what is summed behind them is what they moved (train/local_step.cpp). So what is said here holds at the
/// end of each replay.
class Update {
 public:
  virtual ~Update() = default;

  /// For people: how the ranks exchange what they have.
  virtual std::string_view name() const = 0;
  /// One sentence for the user when something is not as asked, known after `allocate`; else empty. The same
  /// on all ranks.
  virtual std::string note() const = 0;
  /// What was settled at start and affects bits, as (setting, value), for checkpoints. After `allocate`.
  virtual RunFingerprint settings() const = 0;

  /// Zeroed memory for a control block of so many floats and, behind it, the gradients of all parameters.
  /// Communicates: every rank calls it, outside World::together; what fails on one is thrown on all
  /// (AgreedError). To be given back before the update goes.
  virtual Buffer allocate(std::size_t control_floats) = 0;
  /// What is exchanged, in the pieces that are updated by one task each: all of it, without gaps.
  virtual std::span<const ParamSpan> spans() const = 0;
  /// Appends one step to `program`, which the caller finalizes. Every rank must append the same, but for what
  /// only some do. The program's
  /// tasks refer to the update. Throws std::logic_error when the parts do not fit each other.
  virtual void append(engine::StepProgram& program, StepParts parts, Concurrency concurrent) = 0;

  /// Between steps, with nothing under way; every rank calls it. What update tasks change besides parameters
  /// then stands in `blocks`, host memory of the size of the trained parameters each, on every rank, also where
  /// only some run those tasks; and in `shared`, host memory too, what a rank has that took part in every step.
  /// Throws Error{comm}.
  virtual void complete(std::span<const std::span<float>> /*blocks*/,
                        std::span<const std::span<float>> /*shared*/) {}

  /// Where servers make the updates: as of this rank's last step, behind `complete` of all pushes so far.
  virtual std::optional<PushCounts> push_counts() const { return std::nullopt; }
};

}  // namespace cifar_mpi::comm
