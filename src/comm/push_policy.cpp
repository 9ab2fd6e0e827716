#include "comm/push_policy.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "cifar_mpi/base/hash.hpp"

namespace cifar_mpi::comm {

PushPolicy::PushPolicy(int workers, const Aggregation& aggregation, std::uint64_t version,
                       std::function<std::uint64_t(std::uint64_t)> next_meeting,
                       const std::vector<std::uint64_t>& pushed)
    : workers_(static_cast<std::size_t>(workers)),
      aggregation_(aggregation),
      version_(version),
      next_meeting_(std::move(next_meeting)),
      meeting_(next_meeting_(version)) {
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    workers_[w].has = version;
    if (!pushed.empty()) workers_[w].pushed = pushed[w];
  }
  bound_drift();
  for (std::vector<int>* list : {&queue_, &order_.taken, &order_.answered}) list->reserve(workers_.size());
}

/// A run that adds the bound when it resumes may have a worker far ahead of another; that worker need not
/// wait until the other has caught up. At a meeting the lead of a bounded worker is at most one above the
/// bound; any larger lead is ignored. Each meeting decides this from `pushed` alone, which checkpoints store,
/// so a run resumed there decides the same.
void PushPolicy::bound_drift() {
  if (!aggregation_.most_drift) return;
  for (Worker& worker : workers_) worker.forgiven = 0;
  const std::uint64_t least = least_counted(), drift = *aggregation_.most_drift;
  for (Worker& worker : workers_) {
    const std::uint64_t lead = worker.pushed - least;
    if (lead > drift) worker.forgiven = lead - drift - 1;
  }
}

std::uint64_t PushPolicy::least_counted() const {
  const auto least = std::ranges::min_element(
      workers_, [](const Worker& a, const Worker& b) { return a.counted() < b.counted(); });
  return least->counted();
}

void PushPolicy::arrived(int worker) {
  assert(at(worker).place == Place::computing && "a worker pushes once for each answer");
  at(worker).place = Place::here;
  queue_.push_back(worker);
}

bool PushPolicy::gathered() const {
  return std::ranges::all_of(workers_, [&](const Worker& worker) { return worker.has == version_; });
}

std::uint64_t PushPolicy::under_way() const {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(workers_, [](const Worker& worker) { return worker.place != Place::held; }));
}

const PushOrder* PushPolicy::next() {
  order_.taken.clear();
  order_.answered.clear();
  order_.updates = order_.meets = false;
  order_.staleness = 0;
  const bool gathers = gathering_ && !gathered();
  if (gathering_ && !gathers) bound_drift();
  gathering_ = gathers;
  const bool found = gathers ? gather_one() : aggregation_.asynchronous ? one() : take_first();
  return found ? &order_ : nullptr;
}

void PushPolicy::answer(int worker) {
  at(worker).place = Place::computing;
  at(worker).has = version_;
  order_.answered.push_back(worker);
}

/// Answers with the current version, and uses no push.
bool PushPolicy::drop(int worker) {
  std::erase(queue_, worker);
  ++at(worker).pushed;
  order_.taken.push_back(worker);
  answer(worker);
  return true;
}

bool PushPolicy::gather_one() {
  for (int w = 0; w < static_cast<int>(workers_.size()); ++w) {
    if (at(w).place == Place::held) answer(w);
  }
  if (!order_.answered.empty()) return true;
  const auto old = std::ranges::find_if(queue_, [&](int w) { return at(w).has != version_; });
  return old != queue_.end() && drop(*old);
}

/// Its push is part of the update.
void PushPolicy::update_by(int worker) {
  order_.updates = true;
  order_.taken.push_back(worker);
  at(worker).place = Place::held;
  ++at(worker).pushed;
}

void PushPolicy::note_version() {
  ++version_;
  order_.meets = version_ >= meeting_;
  if (!order_.meets) return;
  meeting_ = next_meeting_(version_);
  asked_ = false;
}

bool PushPolicy::take_first() {
  for (const int worker : queue_) {
    if (at(worker).has != version_) return drop(worker);
  }
  const auto needed = static_cast<std::size_t>(aggregation_.of(static_cast<int>(workers_.size())));
  if (queue_.size() < needed) return false;
  if (asked_) meeting_ = version_ + 1;
  const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(needed);
  std::sort(queue_.begin(), end);
  std::for_each(queue_.begin(), end, [this](int worker) { update_by(worker); });
  queue_.erase(queue_.begin(), end);
  note_version();
  for (const int worker : order_.taken) answer(worker);
  return true;
}

/// The workers that were answered and whose pushes are not used yet.
std::optional<int> PushPolicy::whose_turn() const {
  if (!aggregation_.arrival_order) return queue_.empty() ? std::nullopt : std::optional(queue_.front());
  std::uint64_t place = hash_pair(*aggregation_.arrival_order, version_) % under_way();
  for (int w = 0; w < static_cast<int>(workers_.size()); ++w) {
    if (at(w).place == Place::held || place-- != 0) continue;
    return at(w).place == Place::here ? std::optional(w) : std::nullopt;
  }
  return std::nullopt;
}

bool PushPolicy::one() {
  const std::optional<int> worker = whose_turn();
  if (!worker) return false;
  if (asked_) meeting_ = std::min(meeting_, version_ + under_way());
  std::erase(queue_, *worker);
  order_.staleness = version_ - at(*worker).has;
  update_by(*worker);
  note_version();
  release();
  return true;
}

/// Answers waiting workers, those with the fewest pushes first: as many as fit before the meeting.
void PushPolicy::release() {
  const std::uint64_t least = least_counted();
  const auto next_held = [this]() -> std::optional<int> {
    std::optional<int> found;
    for (int w = 0; w < static_cast<int>(workers_.size()); ++w) {
      if (at(w).place == Place::held && (!found || at(w).counted() < at(*found).counted())) found = w;
    }
    return found;
  };
  for (auto w = next_held(); w; w = next_held()) {
    const bool drifts = aggregation_.most_drift && at(*w).counted() - least > *aggregation_.most_drift;
    if (!order_.meets && (drifts || version_ + under_way() >= meeting_)) break;
    answer(*w);
  }
  std::ranges::sort(order_.answered);
}

}  // namespace cifar_mpi::comm
