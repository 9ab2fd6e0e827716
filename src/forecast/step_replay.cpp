#include "forecast/step_replay.hpp"

#include <algorithm>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/report/step_budget.hpp"

namespace cifar_mpi::forecast {
namespace {

using Kind = RecordedStep::Kind;
using report::Section;
using report::Stretch;

/// Turns the recorded stretches of a rank into actions.
class Recorder {
 public:
  explicit Recorder(const report::Timeline& timeline)
      : timeline_(timeline),
        sections_(report::sections_of(timeline)),
        order_(report::collectives_of(timeline)) {}

  /// On a host the time of a collective for which no work waits is the processor's, which moves messages.
  RecordedStep record(const std::vector<Stretch>& stretches, bool on_host) {
    RecordedStep step;
    std::vector<int> left(timeline_.tasks.size(), 0);
    for (const Stretch& stretch : stretches) {
      if (stretch.task != Stretch::kNobody) ++left[static_cast<std::size_t>(stretch.task)];
    }
    next_ = 0;
    add_ready(left, step);
    for (const Stretch& stretch : stretches) {
      if (report::is_collective(timeline_, stretch.task)) {
        if (on_host && !stretch.waited_for) work_of(step).messages_s += 1e-9 * stretch.ns();
        continue;
      }
      if (stretch.begins) add_waits(stretch.task, step);
      add_work(stretch, step);
      if (stretch.task == Stretch::kNobody) continue;
      if (--left[static_cast<std::size_t>(stretch.task)] == 0) add_ready(left, step);
    }
    return step;
  }

 private:
  /// Adds the next collectives whose inputs are complete.
  void add_ready(const std::vector<int>& left, RecordedStep& step) {
    for (; next_ < order_.size(); ++next_) {
      for (const std::int32_t work : report::predecessors(timeline_, order_[next_].task, false))
        if (left[static_cast<std::size_t>(work)] > 0) return;
      step.actions.push_back({Kind::ready, next_});
    }
  }

  void add_waits(std::int32_t task, RecordedStep& step) {
    for (const std::int32_t before : report::predecessors(timeline_, task, true)) {
      const auto found = std::ranges::find(order_, before, &report::CollectiveOrder::task);
      step.actions.push_back({Kind::wait, static_cast<std::size_t>(found - order_.begin())});
    }
  }

  static RecordedStep::Action& work_of(RecordedStep& step) {
    if (step.actions.empty() || step.actions.back().kind != Kind::work) step.actions.push_back({});
    return step.actions.back();
  }

  void add_work(const Stretch& stretch, RecordedStep& step) {
    const Section section =
        stretch.task == Stretch::kNobody ? Section::other : sections_[static_cast<std::size_t>(stretch.task)];
    const bool grows =
        section == Section::input || section == Section::forward || section == Section::backward;
    RecordedStep::Action& work = work_of(step);
    (grows ? work.batch_s : work.fixed_s) += 1e-9 * stretch.ns();
  }

  const report::Timeline& timeline_;
  std::vector<Section> sections_;
  std::vector<report::CollectiveOrder> order_;
  std::size_t next_ = 0;
};

/// Simulated ranks, each with its own clock and position in its step.
class Replay {
 public:
  Replay(const Recording& recording, std::size_t ranks, const Amount& amount)
      : recording_(recording),
        amount_(amount),
        steps_(ranks),
        now_(ranks),
        at_(ranks),
        ends_(recording.collectives.size(), std::vector<double>(ranks)) {}

  void run(int step, const Collectives& collectives) {
    for (std::size_t r = 0; r < steps_.size(); ++r) {
      steps_[r] = &drawn_step(recording_, r, step);
      at_[r] = 0;
    }
    for (std::size_t c = 0; c < ends_.size(); ++c) {
      const std::int32_t before = recording_.collectives[c].before;
      for (std::size_t r = 0; r < steps_.size(); ++r) {
        advance(r, c);
        ends_[c][r] = before < 0 ? now_[r] : std::max(now_[r], ends_[c - 1][r]);
      }
      collectives(c, ends_[c]);
    }
    for (std::size_t r = 0; r < steps_.size(); ++r) {
      advance(r, ends_.size());
      for (const std::vector<double>& end : ends_) now_[r] = std::max(now_[r], end[r]);
    }
  }

  double latest() const { return std::ranges::max(now_); }

 private:
  /// Runs a rank until it is ready for collective `until`, or to the end of its step.
  void advance(std::size_t rank, std::size_t until) {
    const auto& actions = steps_[rank]->actions;
    for (std::size_t& at = at_[rank]; at < actions.size();) {
      const RecordedStep::Action& action = actions[at++];
      now_[rank] += seconds_of(action, amount_);
      if (action.kind == Kind::wait && action.collective < until)
        now_[rank] = std::max(now_[rank], ends_[action.collective][rank]);
      if (action.kind == Kind::ready && action.collective == until) return;
    }
  }

  const Recording& recording_;
  Amount amount_;
  std::vector<const RecordedStep*> steps_;  ///< by rank: the recorded step that it repeats
  std::vector<double> now_;                 ///< by rank: its clock in seconds
  std::vector<std::size_t> at_;             ///< by rank: its next action
  std::vector<std::vector<double>> ends_;   ///< by collective and rank: seconds
};

}  // namespace

const RecordedStep& drawn_step(const Recording& recording, std::size_t rank, int step) {
  const auto bits = random4(0, RandomPurpose::synthetic, rank, static_cast<std::uint32_t>(step))[0];
  return recording.steps[uniform_below(bits, static_cast<std::uint32_t>(recording.steps.size()))];
}

DrawnWork drawn_work(const Recording& recording, int ranks, int steps) {
  DrawnWork work;
  for (int step = 0; step < steps; ++step) {
    for (int r = 0; r < ranks; ++r) {
      for (const RecordedStep::Action& action :
           drawn_step(recording, static_cast<std::size_t>(r), step).actions) {
        work.fixed_s += action.fixed_s;
        work.batch_s += action.batch_s;
      }
    }
  }
  const double drawn = static_cast<double>(ranks) * steps;
  return {work.fixed_s / drawn, work.batch_s / drawn};
}

double seconds_of(const RecordedStep::Action& action, const Amount& amount) {
  return action.fixed_s + amount.batch * action.batch_s + amount.messages * action.messages_s;
}

Recording record_of(const report::Timeline& timeline) {
  const report::SampledSteps sampled = report::sampled_steps(timeline);
  Recording recording;
  recording.collectives = report::collectives_of(timeline);
  Recorder recorder(timeline);
  for (const auto& step : sampled.steps) {
    for (std::size_t r = 0; r < step.ranks.size(); ++r)
      recording.steps.push_back(recorder.record(step.ranks[r], step.work_cpu_ns[r] >= 0));
  }
  for (const RecordedStep& step : recording.steps) {
    for (const RecordedStep::Action& action : step.actions) {
      recording.messages_s += action.messages_s / static_cast<double>(recording.steps.size());
    }
  }
  return recording;
}

double step_seconds(const Recording& recording, int ranks, const Amount& amount, int steps,
                    const Collectives& collectives) {
  Replay replay(recording, static_cast<std::size_t>(ranks), amount);
  for (int step = 0; step < steps; ++step) replay.run(step, collectives);
  return replay.latest() / steps;
}

}  // namespace cifar_mpi::forecast
