#include "report/replay.hpp"

#include <algorithm>

namespace cifar_mpi::report {
namespace {

/// The beginning of the step on a rank: that of its first stretch.
std::int64_t begin_of(const std::vector<Stretch>& stretches) {
  return stretches.empty() ? 0 : stretches.front().begin_ns;
}

/// The dependencies of a task of the program.
struct Waits {
  std::vector<std::int32_t> collectives;
  std::vector<std::int32_t> work;
  std::vector<std::int32_t> feeds;  ///< of work: the collectives that have it in `work`
  std::int32_t before = -1;         ///< of a collective: the one before it on its lane, or -1
  std::int32_t next = -1;           ///< of a collective: the one after it on its lane, or -1
};

/// Each step is replayed event by event: a rank runs until it waits for a collective, and continues when
/// that one ends; a collective ends once everything that it waits for has ended. The cost of a step grows
/// with its stretches, and per rank with the tasks and their `after`.
class Replayer {
 public:
  Replayer(const Timeline& timeline, const SampledSteps& sampled, const Replay& replay);

  double run() {
    for (const SampledSteps::Step& step : sampled_.steps) run(step);
    return took_.empty() ? 0.0 : std::ranges::max(took_);
  }

 private:
  static constexpr double kNotDone = -1.0;

  void run(const SampledSteps::Step& step);
  void begin(const SampledSteps::Step& step);
  void begin_collectives();
  void make_progress(const SampledSteps::Step& step);
  void walk(std::size_t rank, const std::vector<Stretch>& stretches);
  bool work(std::size_t rank, const Stretch& stretch);
  void note_if_ready(std::int32_t collective);
  void complete(const SampledSteps::Step& step, std::int32_t collective);
  double& done(std::size_t rank, std::int32_t task) { return done_[rank][static_cast<std::size_t>(task)]; }
  double done(std::size_t rank, std::int32_t task) const {
    return done_[rank][static_cast<std::size_t>(task)];
  }
  /// A collective ends on all ranks at once.
  bool ended(std::int32_t collective) const { return done(0, collective) != kNotDone; }
  const Waits& waits(std::int32_t task) const { return waits_[static_cast<std::size_t>(task)]; }

  const Timeline& timeline_;
  const SampledSteps& sampled_;
  const Replay& replay_;
  std::vector<CollectiveOrder> order_;
  std::vector<Waits> waits_;  ///< by task
  std::vector<double> took_;  ///< by rank: all steps so far
  // of the step
  std::vector<double> began_;                    ///< by rank
  std::vector<double> now_;                      ///< by rank
  std::vector<std::size_t> at_;                  ///< by rank: its next stretch
  std::vector<std::size_t> waited_;              ///< by rank: collectives that this stretch has waited for
  std::vector<std::vector<double>> done_;        ///< by rank and task: when, or kNotDone
  std::vector<std::vector<std::int32_t>> left_;  ///< by rank and task: remaining stretches
  std::vector<std::uint64_t> pending_;  ///< by collective: work, on all ranks, that it still waits for
  std::vector<std::vector<std::size_t>> sleepers_;  ///< by collective: ranks that wait for it
  std::vector<std::size_t> awake_;                  ///< ranks that can continue
  std::vector<std::int32_t> ready_;                 ///< collectives that can end
};

Replayer::Replayer(const Timeline& timeline, const SampledSteps& sampled, const Replay& replay)
    : timeline_(timeline),
      sampled_(sampled),
      replay_(replay),
      order_(collectives_of(timeline)),
      took_(sampled.ranks.size(), 0.0) {
  for (std::size_t t = 0; t < timeline.tasks.size(); ++t) {
    const auto task = static_cast<std::int32_t>(t);
    waits_.push_back({predecessors(timeline, task, true), predecessors(timeline, task, false), {}});
  }
  for (const CollectiveOrder& collective : order_) {
    waits_[static_cast<std::size_t>(collective.task)].before = collective.before;
    if (collective.before >= 0) waits_[static_cast<std::size_t>(collective.before)].next = collective.task;
    for (const std::int32_t work : waits(collective.task).work)
      waits_[static_cast<std::size_t>(work)].feeds.push_back(collective.task);
  }
}

void Replayer::begin(const SampledSteps::Step& step) {
  const std::size_t ranks = step.ranks.size(), tasks = timeline_.tasks.size();
  std::int64_t first = INT64_MAX;
  for (const auto& stretches : step.ranks) first = std::min(first, begin_of(stretches));
  began_.clear();
  for (const auto& stretches : step.ranks) began_.push_back(static_cast<double>(begin_of(stretches) - first));
  now_ = began_;
  at_.assign(ranks, 0);
  waited_.assign(ranks, 0);
  done_.assign(ranks, std::vector<double>(tasks, kNotDone));
  left_.assign(ranks, std::vector<std::int32_t>(tasks, 0));
  for (std::size_t r = 0; r < ranks; ++r) {
    for (const Stretch& stretch : step.ranks[r]) {
      if (stretch.task != Stretch::kNobody) ++left_[r][static_cast<std::size_t>(stretch.task)];
    }
    for (std::size_t t = 0; t < tasks; ++t) {  // work that was not recorded blocks nothing
      if (left_[r][t] == 0 && !is_collective(timeline_, static_cast<std::int32_t>(t))) done_[r][t] = now_[r];
    }
    awake_.push_back(r);
  }
  begin_collectives();
}

void Replayer::begin_collectives() {
  pending_.assign(timeline_.tasks.size(), 0);
  sleepers_.assign(timeline_.tasks.size(), {});
  for (const CollectiveOrder& collective : order_) {
    std::uint64_t& pending = pending_[static_cast<std::size_t>(collective.task)];
    for (std::size_t r = 0; r < done_.size(); ++r) {
      for (const std::int32_t work : waits(collective.task).work)
        pending += done(r, work) == kNotDone ? 1 : 0;
    }
    note_if_ready(collective.task);
  }
}

void Replayer::run(const SampledSteps::Step& step) {
  begin(step);
  make_progress(step);
  // A cycle of waits, which only a forged file has, is cut at its first collective.
  for (const CollectiveOrder& collective : order_) {
    if (ended(collective.task)) continue;
    complete(step, collective.task);
    make_progress(step);
  }
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    for (const CollectiveOrder& collective : order_) now_[r] = std::max(now_[r], done(r, collective.task));
    took_[r] += now_[r] - began_[r];
  }
}

/// Runs until each rank has finished or waits, and no collective can end.
void Replayer::make_progress(const SampledSteps::Step& step) {
  while (!awake_.empty() || !ready_.empty()) {
    if (!awake_.empty()) {
      const std::size_t rank = awake_.back();
      awake_.pop_back();
      walk(rank, step.ranks[rank]);
    } else {
      const std::int32_t collective = ready_.back();
      ready_.pop_back();
      if (!ended(collective)) complete(step, collective);
    }
  }
}

/// Runs a rank until it waits or has finished.
void Replayer::walk(std::size_t rank, const std::vector<Stretch>& stretches) {
  for (std::size_t& at = at_[rank]; at < stretches.size(); ++at) {
    const Stretch& stretch = stretches[at];
    if (stretch.task == Stretch::kNobody) {
      if (replay_.gaps) now_[rank] += stretch.ns();
    } else if (is_collective(timeline_, stretch.task)) {
      if (!stretch.waited_for) now_[rank] += replay_.transfer * stretch.ns();
    } else if (!work(rank, stretch)) {
      return;
    }
  }
}

/// Returns false if it waits for a collective.
bool Replayer::work(std::size_t rank, const Stretch& stretch) {
  double& now = now_[rank];
  const std::vector<std::int32_t>& collectives = waits(stretch.task).collectives;
  for (std::size_t& at = waited_[rank]; stretch.begins && at < collectives.size(); ++at) {
    if (!ended(collectives[at])) {
      sleepers_[static_cast<std::size_t>(collectives[at])].push_back(rank);
      return false;
    }
    now = std::max(now, done(rank, collectives[at]));
  }
  waited_[rank] = 0;
  now += stretch.ns() * (replay_.work ? replay_.work(rank, stretch.task) : 1.0);
  if (--left_[rank][static_cast<std::size_t>(stretch.task)] > 0) return true;
  done(rank, stretch.task) = now;
  for (const std::int32_t collective : waits(stretch.task).feeds) {
    --pending_[static_cast<std::size_t>(collective)];
    note_if_ready(collective);
  }
  return true;
}

void Replayer::note_if_ready(std::int32_t collective) {
  const std::int32_t before = waits(collective).before;
  if (pending_[static_cast<std::size_t>(collective)] == 0 && !ended(collective) &&
      (before < 0 || ended(before)))
    ready_.push_back(collective);
}

void Replayer::complete(const SampledSteps::Step& step, std::int32_t collective) {
  const Waits& own = waits(collective);
  double latest = std::ranges::max(began_);
  for (std::size_t r = 0; r < done_.size(); ++r) {
    for (const std::int32_t work : own.work) latest = std::max(latest, done(r, work));
    if (own.before >= 0) latest = std::max(latest, done(r, own.before));
  }
  const auto task = static_cast<std::size_t>(collective);
  for (std::size_t r = 0; r < done_.size(); ++r)
    done_[r][task] = latest + replay_.transfer * step.transfer_ns[r][task];
  awake_.insert(awake_.end(), sleepers_[task].begin(), sleepers_[task].end());
  sleepers_[task].clear();
  if (own.next >= 0) note_if_ready(own.next);
}

}  // namespace

double replay_ns(const Timeline& timeline, const SampledSteps& sampled, const Replay& replay) {
  return Replayer(timeline, sampled, replay).run();
}

}  // namespace cifar_mpi::report
