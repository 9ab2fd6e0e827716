#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/program.hpp"

/// A way to update: from complete gradients to the parameters of the next step.
namespace cifar_mpi::comm {

/// The ways to update; src/comm/README.md says when to use which.
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

/// What the ranks exchange: the control block and, after it in the same memory, the gradients.
class GradientBlock {
 public:
  GradientBlock() = default;
  GradientBlock(Buffer memory, std::size_t control_floats)
      : memory_(std::move(memory)), control_floats_(control_floats) {}

  std::span<float> all() const { return memory_.span<float>(); }
  std::span<float> control() const { return all().first(control_floats_); }
  std::span<float> grads() const { return all().subspan(control_floats_); }
  /// The gradients of one span; those of the first, which begins at 0, with the control block before them.
  std::span<float> array_of(std::size_t index, const ParamSpan& span) const {
    if (index == 0) return all().first(control_floats_ + span.end);
    return grads().subspan(span.begin, span.end - span.begin);
  }

 private:
  Buffer memory_;
  std::size_t control_floats_ = 0;
};

/// What the tasks of a step change besides the gradient block.
struct StepState {
  std::span<float> params;       ///< the trained ones, which the update tasks change
  std::span<double> decay_sums;  ///< a sum from each update task for `finish`
  /// The next step, which `finish` increments. If steps were made without a worker, an update by servers leaves the last
  /// of them here before `finish`.
  std::uint64_t* step = nullptr;
};

/// One training step without the exchange between the ranks.
struct StepParts {
  /// Control block to last backward task, in order. A collective task among them (engine::sum_over_ranks) gets its work
  /// from the update, in whose Update::rank_sums it lies.
  std::vector<engine::Task> compute;
  /// Those of each span of `spans`, in their order; they read the sum of their span. An all-reduce also accepts one
  /// collective task per span: all tasks before these sums run first, in the order of the spans, then the rest.
  std::vector<std::vector<engine::Task>> update;
  std::vector<engine::Task> finish;  ///< needs everything; in order
  /// If set, it reads all sums and precedes all updates, which then wait for the last sum; otherwise each
  /// update waits only for the sum of its own span.
  std::optional<engine::Task> before_updates;
};

/// What may run concurrently with the compute lane.
struct Concurrency {
  bool exchange = true;  ///< false: exchanges wait for the end of backward, to measure the cost of that
  bool branches = true;  ///< false: tasks marked `concurrent` run in program order
};

/// The servers' use of pushes, and the bytes sent, since the program was built.
struct PushCounts {
  static constexpr std::size_t kStalenesses = 256;
  std::vector<std::uint64_t> applied, dropped;  ///< pushes, by worker
  /// The number of asynchronous updates of each staleness; the last entry includes all above. Else empty.
  std::vector<std::uint64_t> staleness;
  std::uint64_t most_stale = 0;
  std::vector<std::uint64_t> worker_bytes, server_bytes;  ///< of pushes and answers, by worker and by server
};

/// The part of a step between its gradients and its new parameters that depends on other ranks.
///
/// Everything is decided while the program is built: `append` inserts the exchange between the step's own
/// tasks, and running is a replay. The contract between an update and the loop:
///
///   drain   when the program's runner has finished, nothing is in flight, and all ranks that compute have the
///           same parameters: evaluation, checkpoints and the comparison of the ranks come then, after
///           `complete` if they need the state of the update tasks
///   agree   before the first task of `finish` the control block holds the sums over all ranks: every rank
///           detects divergence at the same step, and decides at the same step without further messages
///   stop    a request to stop is a word of the control block, so it takes effect on all ranks at once
///
/// A rank that serves and holds no data gives `append` parts without compute tasks; its update receives the gradients
/// of its spans instead and sends the parameters after their update tasks, which only it runs. Local steps have no
/// class of their own: all steps between two exchanges are compute tasks of one replay, and the sum is that of their
/// moves (step/local_step.cpp). So this contract holds at the end of each replay.
class Update {
 public:
  virtual ~Update() = default;

  /// For messages: how the ranks exchange gradients.
  virtual std::string_view name() const = 0;
  /// A sentence for the user if something differs from the request, known after `allocate`; else empty. The
  /// same on all ranks.
  virtual std::string note() const = 0;
  /// The choices at start that affect bits, as (setting, value), for checkpoints. Call it after `allocate`.
  virtual RunFingerprint settings() const = 0;

  /// Makes `block`, zeroed, with a control block of this many floats. Communicates: every rank calls it, outside
  /// World::together; a failure on one is thrown on all (AgreedError).
  virtual void allocate(std::size_t control_floats) = 0;
  /// The memory that the step's tasks write and the ranks exchange; it lasts as long as the update.
  virtual GradientBlock& block() = 0;
  /// Memory for sums over all ranks during the compute and the update tasks; empty where no rank sums any.
  virtual std::span<float> rank_sums() { return {}; }
  /// The arrays that the step's tasks change besides `block`. Call it before `append`; only updates that send or receive
  /// them need it.
  virtual void bind(const StepState& /*state*/) {}
  /// The exchanged floats, cut without gaps into spans that one task each updates.
  virtual std::span<const ParamSpan> spans() const = 0;
  /// Appends one step to `program`, which the caller finalizes. Every rank must append the same, except for
  /// tasks of special roles. The program's tasks refer to the update. Throws std::logic_error when the parts
  /// do not fit each other.
  virtual void append(engine::StepProgram& program, StepParts parts, Concurrency concurrent) = 0;

  /// Collective; between steps, with nothing in flight. Fills `blocks`, host memory of the size of the trained
  /// parameters each, on every rank with the state that update tasks change, even if only some ranks run those tasks;
  /// and `shared`, also host memory, with the value of a rank that took part in every step. Throws Error{comm}.
  virtual void complete(std::span<const std::span<float>> /*blocks*/,
                        std::span<const std::span<float>> /*shared*/) {}

  /// With servers: the counts at this rank's last step; after `complete`, of all pushes so far.
  virtual std::optional<PushCounts> push_counts() const { return std::nullopt; }
};

}  // namespace cifar_mpi::comm
