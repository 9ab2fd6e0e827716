#include "watch/stall.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::watch {
namespace {

using comm::Activity;

bool moved(const RankStatus& now, const RankStatus& before) {
  return now.step != before.step || now.activity != before.activity || !(now.progress == before.progress);
}

const char* name(Activity activity) {
  switch (activity) {
    case Activity::starting:
      return "while starting";
    case Activity::checking:
      return "in the self-check of its device";
    case Activity::training:
      return "while training";
    case Activity::evaluating:
      return "while evaluating";
    case Activity::saving:
      return "at a checkpoint";
    case Activity::watching:
      return "while watching for a checkpoint";
    case Activity::measuring:
      return "while measuring";
    case Activity::leaving:
      return "while leaving";
  }
  return "";
}

}  // namespace

double StallJudge::limit(Activity activity) const {
  switch (activity) {
    case Activity::starting:
    case Activity::saving:
      return limits_.timeout_s * limits_.patience;
    case Activity::watching:
    case Activity::measuring:
      return std::numeric_limits<double>::infinity();
    default:
      return limits_.timeout_s;
  }
}

void StallJudge::note(const std::vector<RankStatus>& ranks, double passed) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Watched& w = watched_[i];
    const RankStatus& now = ranks[i];
    w.gone_s = now.gone ? w.gone_s + passed : 0.0;
    w.no_tick_s = now.ticks == w.last.ticks ? w.no_tick_s + passed : 0.0;
    w.no_progress_s = moved(now, w.last) ? 0.0 : w.no_progress_s + passed;
    w.last = now;
  }
}

std::optional<Stall> StallJudge::look(double now, const std::vector<RankStatus>& ranks,
                                      const std::vector<bool>& waits) {
  if (!last_look_) {
    last_look_ = now;
    for (const RankStatus& rank : ranks) watched_.push_back({rank});
    return std::nullopt;
  }
  note(ranks, std::clamp(now - *last_look_, 0.0, kMostPerLook));
  last_look_ = now;

  using Reason = Stall::Reason;
  std::optional<Stall> worst;
  const auto blame = [&](Reason reason, std::size_t place, double seconds) {
    // Reasons stand in the order of blame; of equals the one furthest behind.
    const bool worse = !worst || reason < worst->reason ||
                       (reason == worst->reason && ranks[place].step < ranks[worst->culprit].step);
    if (worse) worst = Stall{reason, place, seconds};
  };
  bool late = false;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Watched& w = watched_[i];
    late = late || (limits_.timeout_s > 0.0 && ranks[i].activity != Activity::leaving &&
                    (w.no_progress_s >= limit(ranks[i].activity) || w.no_tick_s >= limits_.timeout_s));
    if (w.gone_s >= limits_.gone_s) blame(Reason::gone, i, w.gone_s);
  }
  if (worst || !late) return worst;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Watched& w = watched_[i];
    if (ranks[i].activity == Activity::leaving) continue;
    // One that is late makes the others wait, so all of them are about as late; a stopped one shows at once.
    if (w.no_tick_s >= 0.5 * limits_.timeout_s) {
      blame(Reason::stopped, i, w.no_tick_s);
    } else if (w.no_progress_s >= 0.5 * limits_.timeout_s && std::isfinite(limit(ranks[i].activity))) {
      blame(waits[i] ? Reason::waiting : Reason::stuck, i, w.no_progress_s);
    }
  }
  return worst;
}

std::string name_rank(const RankStatus& rank, const std::string& host) {
  return concat("rank ", rank.rank, " on ", host, " (pid ", rank.pid, ")");
}

std::string describe_place(const RankStatus& rank, const std::vector<WatchedTask>& tasks) {
  if (rank.activity == Activity::checking && rank.step > 0)
    return concat("in check ", rank.step, " of the self-check of its device");
  if (rank.activity != Activity::training) return name(rank.activity);
  std::string text = concat("in step ", rank.step + 1);
  const auto task = static_cast<std::size_t>(rank.progress.task);
  if (rank.progress.task == engine::ProgressCounter::kNobody || task >= tasks.size())
    return text + ", between tasks";
  return concat(text, tasks[task].collective ? ", " : ", task ", tasks[task].name);
}

const std::vector<WatchedTask>& tasks_of(int rank, const std::vector<WatchedProgram>& programs) {
  static const std::vector<WatchedTask> unknown;
  const std::vector<WatchedTask>* found = &unknown;
  for (const WatchedProgram& program : programs) {
    if (program.first <= rank) found = &program.tasks;
  }
  return *found;
}

std::string stall_text(const Stall& stall, const std::vector<RankStatus>& ranks, std::size_t self,
                       const std::string& host, const std::vector<WatchedProgram>& programs) {
  const auto place = [&](const RankStatus& rank) {
    return describe_place(rank, tasks_of(rank.rank, programs));
  };
  const RankStatus& culprit = ranks[stall.culprit];
  const std::string who = name_rank(culprit, host);
  const std::string where = place(culprit);
  const std::string since = fmt::format(" for {:.1f} s ", stall.seconds);
  std::string waiter;
  if (stall.culprit != self) {
    waiter = concat("; rank ", ranks[self].rank, " waits for it ", place(ranks[self]));
  }
  switch (stall.reason) {
    case Stall::Reason::gone:
      return concat(who, " has ended ", where, waiter);
    case Stall::Reason::stopped:
      return concat(who, " has shown no sign of life", since, where, ", it is probably stopped", waiter);
    case Stall::Reason::stuck:
      return concat(who, " has not moved", since, where, waiter);
    case Stall::Reason::waiting:
      return concat(who, " has waited", since, where, "; no rank of ", host,
                    " moves: they wait for another node, or for each other");
  }
  return {};
}

}  // namespace cifar_mpi::watch
