#include "train/launches.hpp"

namespace cifar_mpi::train {
namespace {

/// Servers update with the gradients of some workers, so a replay is one batch of this rank and may end
/// several steps later.
class PartialPace final : public Pace {
 public:
  PartialPace(const step::Plan& plan, const step::Device& device, const step::Blocks& blocks)
      : Pace(plan.sizes), backend_(*device.backend), blocks_(blocks) {}

  /// The counter holds the last step. A step that was not applied has a record that says so, and counts here
  /// like any other.
  engine::Replay made(const engine::Replay& planned, engine::Runner& step) const override {
    step.finish();
    std::uint64_t counter = 0;
    backend_.copy(&counter, blocks_.step_counter.data(), sizeof counter);
    const engine::StepRecord& record = blocks_.records[engine::record_place(counter)];
    const bool failed = record.step == counter && record.samples > 0.0 && !record.applied;
    return {planned.begin, failed ? counter + 1 : counter};
  }
  bool in_step() const override { return false; }

 private:
  engine::Backend& backend_;
  const step::Blocks& blocks_;
};

std::unique_ptr<Pace> make_pace(const step::Plan& plan, const step::Device& device,
                                const step::Blocks& blocks) {
  if (plan.sizes.partial_aggregation()) return std::make_unique<PartialPace>(plan, device, blocks);
  return std::make_unique<Pace>(plan.sizes);
}

}  // namespace

Launches::Launches(const step::Plan& plan, const step::Device& device, const step::Blocks& blocks,
                   const Programs& programs)
    : blocks_(blocks),
      programs_(programs),
      pace_(make_pace(plan, device, blocks)),
      last_(plan.sizes.replay_before(plan.progress.step)) {}

engine::Replay Launches::next(int replays) const {
  engine::Replay next{last_.end, last_.end};
  for (int i = 0; i < replays; ++i) next.end = pace_->next(next.end).end;
  return next;
}

void Launches::launch(int replays, bool compares) {
  last_.begin = last_.end;
  for (int i = 0; i < replays; ++i) {
    unread_.push_back({pace_->next(last_.end), compares && i == 0});
    last_.end = unread_.back().replay.end;
  }
  engine::Runner& step = *programs_.step;
  step.replay(replays);
  replays_ += static_cast<std::uint64_t>(replays);
  unread_.back().replay = pace_->made(unread_.back().replay, step);
  last_.end = unread_.back().replay.end;
}

void Launches::note_done(const report::StepReporter& reporter) {
  const std::uint64_t running = replays_ - programs_.step->finished();
  for (std::size_t i = 0; i + running < unread_.size(); ++i) {
    if (!unread_[i].done) unread_[i].done = reporter.note_done(unread_[i].replay);
  }
}

void Launches::finish(const report::StepReporter& reporter) {
  programs_.step->finish();
  note_done(reporter);
}

}  // namespace cifar_mpi::train
