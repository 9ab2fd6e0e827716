#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "cifar_mpi/engine/replay.hpp"
#include "report/step_reporter.hpp"
#include "train/session_state.hpp"

namespace cifar_mpi::train {

/// The steps of each replay. Before the launch they are known: one step, or all local steps between two
/// averagings. With partial aggregation the servers decide, and `made` reads the result.
class Pace {
 public:
  explicit Pace(const config::Sizes& sizes) : sizes_(sizes) {}
  virtual ~Pace() = default;

  /// The replay that begins after `done` steps.
  engine::Replay next(std::uint64_t done) const { return sizes_.replay_after(done); }
  /// The steps that a launched replay made.
  virtual engine::Replay made(const engine::Replay& planned, engine::Runner& /*step*/) const {
    return planned;
  }
  /// Whether all ranks make the same step at the same time, so that its record has sums over all ranks.
  virtual bool in_step() const { return true; }

 private:
  const config::Sizes& sizes_;
};

/// A replay from its launch until its record is read.
struct Launch {
  engine::Replay replay;
  bool compares = false;  ///< the ranks' parameters, as they were before it
  std::optional<report::StepReporter::Done> done = {};
};

/// Progress of a run: the replays of its step program in order, from launch to record.
class Launches {
 public:
  /// All arguments must outlive it.
  Launches(const step::Plan& plan, const step::Device& device, const step::Blocks& blocks,
           const Programs& programs);

  const Pace& pace() const { return *pace_; }
  /// Steps enqueued since the run began.
  std::uint64_t steps() const { return last_.end; }
  /// Steps whose records have been read.
  std::uint64_t steps_read() const { return unread_.empty() ? last_.end : unread_.front().replay.begin; }
  /// What the last call of `launch` launched; initially the last replay of the previous start.
  const engine::Replay& last() const { return last_; }
  /// The steps that a launch of so many replays would make.
  engine::Replay next(int replays = 1) const;
  /// Whether all records are read before the next launch: the next averaging may be far away, and a record's
  /// request takes effect at once.
  bool reads_at_once() const { return next().steps() > 1 || !pace_->in_step(); }

  /// Launches so many replays as one.
  void launch(int replays, bool compares);
  /// From here on the steps have another program, which may have made some before.
  void change_program() { replays_ = programs_.step->finished(); }

  /// Records the time of finished replays.
  void note_done(const report::StepReporter& reporter);
  /// Waits for all launched replays.
  void finish(const report::StepReporter& reporter);
  /// Calls `read(launch, record)` for each replay that ends with step number `until` or before and was not read.
  template <class Read>
  void read_records(std::uint64_t until, const Read& read) {
    for (; !unread_.empty() && unread_.front().replay.end <= until; unread_.pop_front()) {
      const engine::Replay& made = unread_.front().replay;
      read(unread_.front(),
           blocks_.records[engine::record_place(made.end - 1, pace_->next(made.begin).steps())]);
    }
  }

 private:
  const step::Blocks& blocks_;
  const Programs& programs_;
  std::unique_ptr<Pace> pace_;
  engine::Replay last_;
  std::deque<Launch> unread_;
  std::uint64_t replays_ = 0;  ///< launched of this program
};

}  // namespace cifar_mpi::train
