#include "report/replay.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cifar_mpi::report {
namespace {

/// Of the step on a rank, whose stretches begin with it.
std::int64_t begin_of(const std::vector<Stretch>& stretches) {
  return stretches.empty() ? 0 : stretches.front().begin_ns;
}

/// A task of the program, with what it waits for.
struct Waits {
  std::vector<std::int32_t> collectives;
  std::vector<std::int32_t> work;
};

class Replayer {
 public:
  Replayer(const Timeline& timeline, const SampledSteps& sampled, const Replay& replay)
      : timeline_(timeline),
        sampled_(sampled),
        replay_(replay),
        order_(collectives_of(timeline)),
        took_(sampled.ranks.size(), 0.0) {
    for (std::size_t t = 0; t < timeline.tasks.size(); ++t) {
      const auto task = static_cast<std::int32_t>(t);
      waits_.push_back({predecessors(timeline, task, true), predecessors(timeline, task, false)});
    }
  }

  double run() {
    for (const SampledSteps::Step& step : sampled_.steps) run(step);
    return took_.empty() ? 0.0 : *std::max_element(took_.begin(), took_.end());
  }

 private:
  static constexpr double kNotDone = -1.0;

  void run(const SampledSteps::Step& step);
  void begin(const SampledSteps::Step& step);
  bool walk(std::size_t rank, const std::vector<Stretch>& stretches);
  bool work(std::size_t rank, const Stretch& stretch);
  bool complete_one(const SampledSteps::Step& step, bool at_any_cost);
  bool ready(const CollectiveOrder& collective) const;
  void complete(const SampledSteps::Step& step, const CollectiveOrder& collective);
  double& done(std::size_t rank, std::int32_t task) { return done_[rank][static_cast<std::size_t>(task)]; }
  double done(std::size_t rank, std::int32_t task) const {
    return done_[rank][static_cast<std::size_t>(task)];
  }
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
  std::vector<std::size_t> at_;                  ///< by rank: the stretch to do
  std::vector<std::vector<double>> done_;        ///< by rank and task: when, or kNotDone
  std::vector<std::vector<std::int32_t>> left_;  ///< by rank and task: stretches to come
};

void Replayer::begin(const SampledSteps::Step& step) {
  const std::size_t ranks = step.ranks.size(), tasks = timeline_.tasks.size();
  std::int64_t first = INT64_MAX;
  for (const auto& stretches : step.ranks) first = std::min(first, begin_of(stretches));
  began_.clear();
  for (const auto& stretches : step.ranks) began_.push_back(static_cast<double>(begin_of(stretches) - first));
  now_ = began_;
  at_.assign(ranks, 0);
  done_.assign(ranks, std::vector<double>(tasks, kNotDone));
  left_.assign(ranks, std::vector<std::int32_t>(tasks, 0));
  for (std::size_t r = 0; r < ranks; ++r) {
    for (const Stretch& stretch : step.ranks[r]) {
      if (stretch.task != Stretch::kNobody) ++left_[r][static_cast<std::size_t>(stretch.task)];
    }
    for (std::size_t t = 0; t < tasks; ++t) {  // nobody waits for work that was not seen
      if (left_[r][t] == 0 && !is_collective(timeline_, static_cast<std::int32_t>(t))) done_[r][t] = now_[r];
    }
  }
}

void Replayer::run(const SampledSteps::Step& step) {
  begin(step);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < step.ranks.size(); ++r) moved = walk(r, step.ranks[r]) || moved;
    moved = complete_one(step, false) || moved;
    // A circle of waiting, which only a foreign file has, is cut where it begins.
    if (!moved) moved = complete_one(step, true);
  }
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    for (const CollectiveOrder& collective : order_) now_[r] = std::max(now_[r], done(r, collective.task));
    took_[r] += now_[r] - began_[r];
  }
}

/// As far as it goes; true when it moved.
bool Replayer::walk(std::size_t rank, const std::vector<Stretch>& stretches) {
  const std::size_t from = at_[rank];
  for (std::size_t& at = at_[rank]; at < stretches.size(); ++at) {
    const Stretch& stretch = stretches[at];
    if (stretch.task == Stretch::kNobody) {
      if (replay_.gaps) now_[rank] += stretch.ns();
    } else if (is_collective(timeline_, stretch.task)) {
      if (!stretch.waited_for) now_[rank] += replay_.transfer * stretch.ns();
    } else if (!work(rank, stretch)) {
      break;
    }
  }
  return at_[rank] != from;
}

/// False when it waits for a collective.
bool Replayer::work(std::size_t rank, const Stretch& stretch) {
  double& now = now_[rank];
  for (const std::int32_t before : waits(stretch.task).collectives) {
    if (done(rank, before) == kNotDone) return false;
    now = std::max(now, done(rank, before));
  }
  now += stretch.ns() * (replay_.work ? replay_.work(rank, stretch.task) : 1.0);
  if (--left_[rank][static_cast<std::size_t>(stretch.task)] == 0) done(rank, stretch.task) = now;
  return true;
}

/// The first collective for which all ranks are ready, or the first there is; false when there is none.
bool Replayer::complete_one(const SampledSteps::Step& step, bool at_any_cost) {
  for (const CollectiveOrder& collective : order_) {
    if (done(0, collective.task) != kNotDone || (!at_any_cost && !ready(collective))) continue;
    complete(step, collective);
    return true;
  }
  return false;
}

bool Replayer::ready(const CollectiveOrder& collective) const {
  if (collective.before >= 0 && done(0, collective.before) == kNotDone) return false;
  for (std::size_t r = 0; r < done_.size(); ++r) {
    for (const std::int32_t before : waits(collective.task).work) {
      if (done(r, before) == kNotDone) return false;
    }
  }
  return true;
}

void Replayer::complete(const SampledSteps::Step& step, const CollectiveOrder& collective) {
  double latest = *std::max_element(began_.begin(), began_.end());
  for (std::size_t r = 0; r < done_.size(); ++r) {
    for (const std::int32_t before : waits(collective.task).work) latest = std::max(latest, done(r, before));
    if (collective.before >= 0) latest = std::max(latest, done(r, collective.before));
  }
  const auto task = static_cast<std::size_t>(collective.task);
  for (std::size_t r = 0; r < done_.size(); ++r)
    done_[r][task] = latest + replay_.transfer * step.transfer_ns[r][task];
}

}  // namespace

double replay_ns(const Timeline& timeline, const SampledSteps& sampled, const Replay& replay) {
  return Replayer(timeline, sampled, replay).run();
}

}  // namespace cifar_mpi::report
