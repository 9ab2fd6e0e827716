#include "watch/stall.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::watch {
namespace {

using comm::Activity;

/// Compares the count, because the task also changes when collectives are polled in turn without progress.
bool moved(const RankStatus& now, const RankStatus& before) {
  return now.logs || now.step != before.step || now.activity != before.activity ||
         now.progress.count != before.progress.count;
}

/// The node has reported, has stopped reporting, and its ranks have not exited.
bool is_silent(const OtherNode& node, double seconds) {
  return node.heard && std::isfinite(node.quiet) &&
         node.silent_s >= std::max(seconds, StallJudge::kReportIsValid);
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
      return "while exiting";
  }
  return "";
}

std::string why_all_wait(const StallScene& scene) {
  if (scene.others.empty()) return "no rank of this job makes progress: they wait for each other";
  std::string unknown;
  for (const OtherNode& node : scene.others) {
    if (!node.heard) unknown += concat(unknown.empty() ? "" : ", ", node.name);
  }
  if (unknown.empty())
    return concat(
        "no rank of the ", scene.others.size() + 1,
        " nodes of this job makes progress: they wait for each other, or the network between them is gone");
  return concat("no rank of ", scene.host, " makes progress, and no report has ever arrived from ", unknown,
                ": they wait for ranks there, or for each other");
}

constexpr const char* kMeetingAdvice =
    ", where the GPUs of all ranks exchange data: the GPU hangs, or a firewall or the wrong interface "
    "(NCCL_SOCKET_IFNAME) keeps NCCL from the other ranks, or GPUs of this node cannot read each other's "
    "memory (NCCL_P2P_DISABLE=1 avoids that)";

bool exchanges_in_check(const RankStatus& rank) {
  return rank.activity == Activity::checking &&
         rank.step >= static_cast<std::uint64_t>(comm::DeviceCheck::all_reduce);
}

}  // namespace

double StallJudge::limit(Activity activity) const {
  switch (activity) {
    case Activity::starting:
    case Activity::checking:
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
    const bool ticked = now.ticks != w.last.ticks;
    w.gone_s = now.gone ? w.gone_s + passed : 0.0;
    w.no_progress_s = moved(now, w.last) ? 0.0 : w.no_progress_s + passed;
    if (ticked) {
      // A process that was stopped resumes where it was; that time does not count as late.
      if (w.no_tick_s > kMostPerLook) w.no_progress_s = std::max(0.0, w.no_progress_s - w.no_tick_s);
      w.reported = false;
    }
    w.no_tick_s = ticked ? 0.0 : w.no_tick_s + passed;
    w.last = now;
  }
  for (OtherNode& node : others_) node.silent_s += passed;
}

void StallJudge::hear(std::size_t node, double quiet) {
  others_[node].heard = true;
  others_[node].quiet = quiet;
  others_[node].silent_s = 0.0;
  others_[node].missed = false;
}

bool StallJudge::speaks() const {
  for (std::size_t i = 0; i < self_ && i < watched_.size(); ++i) {
    const Watched& w = watched_[i];
    if (!w.last.gone && w.last.activity != Activity::leaving && w.no_tick_s < kAbsent) return false;
  }
  return true;
}

double StallJudge::quiet() const {
  double least = std::numeric_limits<double>::infinity();
  if (limits_.timeout_s <= 0.0) return 0.0;
  for (const Watched& w : watched_) {
    if (w.last.activity == Activity::leaving) continue;
    const double stopped = w.no_tick_s >= kAbsent ? w.no_tick_s / limits_.timeout_s : 0.0;
    least = std::min(least, std::max(stopped, w.no_progress_s / limit(w.last.activity)));
  }
  return least;
}

/// A node without reports counts as one whose processes are all stopped.
double StallJudge::quiet_of(const OtherNode& node) const {
  const double silent = node.silent_s >= kReportIsValid ? node.silent_s / limits_.timeout_s : 0.0;
  return std::max(node.quiet, silent);
}

/// A firewall may block the reports of a working node, so a node that has never reported gets more time.
bool StallJudge::job_is_quiet() const {
  const double own = quiet();
  if (!speaks() || own < 1.0 || std::isinf(own)) return false;
  return std::ranges::all_of(others_, [&](const OtherNode& node) {
    return node.heard ? quiet_of(node) >= 1.0 : own >= limits_.patience;
  });
}

/// Of the results of `blame` for all ranks, the first by reason, and of equals that of the rank with the
/// fewest steps.
template <class Blame>
std::optional<Stall> StallJudge::worst(const Blame& blame) const {
  std::optional<Stall> worst;
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    const std::optional<Stall> found = blame(i, watched_[i]);
    if (!found) continue;
    const bool worse =
        !worst || found->reason < worst->reason ||
        (found->reason == worst->reason && watched_[i].last.step < watched_[worst->culprit].last.step);
    if (worse) worst = found;
  }
  return worst;
}

/// A stall that one rank of this node causes, independent of the others.
std::optional<Stall> StallJudge::held_up() const {
  return worst([this](std::size_t i, const Watched& w) -> std::optional<Stall> {
    if (w.last.activity == Activity::leaving) return std::nullopt;
    if (w.no_tick_s >= limits_.timeout_s && !w.last.spare)
      return Stall{Stall::Reason::stopped, i, w.no_tick_s};
    const bool lives = w.no_tick_s < 0.5 * limits_.timeout_s;
    if (lives && !w.last.waits && w.no_progress_s >= limit(w.last.activity))
      return Stall{Stall::Reason::stuck, i, w.no_progress_s};
    return std::nullopt;
  });
}

/// The rank that all wait for has made no progress for about as long as they have.
std::optional<Stall> StallJudge::held_up_while_all_wait() const {
  const double late_s = 0.5 * limits_.timeout_s;
  std::optional<Stall> found = worst([&](std::size_t i, const Watched& w) -> std::optional<Stall> {
    if (w.last.activity == Activity::leaving) return std::nullopt;
    if (w.no_tick_s >= late_s) return Stall{Stall::Reason::stopped, i, w.no_tick_s};
    return Stall{w.last.waits ? Stall::Reason::waiting : Stall::Reason::stuck, i, w.no_progress_s};
  });
  if (found && found->reason != Stall::Reason::waiting) return found;
  for (std::size_t n = 0; n < others_.size(); ++n) {
    if (is_silent(others_[n], late_s)) return Stall{Stall::Reason::unheard, n, others_[n].silent_s};
  }
  return found;
}

/// Reports once a stopped rank that the others do not need, or a node that may be stopped.
std::optional<Stall> StallJudge::missing() {
  if (!speaks()) return std::nullopt;
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    Watched& w = watched_[i];
    if (w.last.spare && w.last.activity != Activity::leaving && w.no_tick_s >= limits_.timeout_s &&
        !std::exchange(w.reported, true))
      return Stall{Stall::Reason::stopped, i, w.no_tick_s, false};
  }
  for (std::size_t n = 0; n < others_.size(); ++n) {
    if (is_silent(others_[n], limits_.timeout_s) && !std::exchange(others_[n].missed, true))
      return Stall{Stall::Reason::unheard, n, others_[n].silent_s, false};
  }
  return std::nullopt;
}

std::optional<Stall> StallJudge::look(double now, const std::vector<RankStatus>& ranks) {
  if (!last_look_) {
    last_look_ = now;
    for (const RankStatus& rank : ranks) watched_.push_back({rank});
    return std::nullopt;
  }
  note(ranks, std::clamp(now - *last_look_, 0.0, kMostPerLook));
  last_look_ = now;
  const auto gone = worst([this](std::size_t i, const Watched& w) -> std::optional<Stall> {
    if (w.gone_s < limits_.gone_s) return std::nullopt;
    return Stall{Stall::Reason::gone, i, w.gone_s};
  });
  if (gone || limits_.timeout_s <= 0.0) return gone;
  if (const auto stall = held_up()) return stall;
  if (job_is_quiet()) return held_up_while_all_wait();
  return missing();
}

std::string name_rank(const RankStatus& rank, const std::string& host) {
  return concat("rank ", rank.rank, " on ", host, " (pid ", rank.pid, ")");
}

std::string describe_place(const RankStatus& rank, const std::vector<WatchedTask>& tasks) {
  if (rank.activity == Activity::checking && rank.step > 0)
    return concat("in check ", rank.step, " (", to_string(static_cast<comm::DeviceCheck>(rank.step)),
                  ") of the self-check of its device");
  if (rank.activity != Activity::training) return name(rank.activity);
  std::string text = concat("in step ", rank.step + 1);
  const auto task = static_cast<std::size_t>(rank.progress.task);
  if (rank.progress.task == engine::ProgressCounter::kNobody || task >= tasks.size())
    return text + ", between tasks";
  return concat(text, tasks[task].collective ? ", " : ", task ", tasks[task].name);
}

bool waits_for_others(const RankStatus& rank, const std::vector<WatchedTask>& tasks) {
  const auto task = static_cast<std::size_t>(rank.progress.task);
  if (rank.progress.task != engine::ProgressCounter::kNobody)
    return rank.activity == Activity::training && task < tasks.size() && tasks[task].collective;
  const bool checks = rank.activity == Activity::checking && rank.step > 0;
  const bool writes = rank.activity == Activity::saving && rank.rank == 0;
  return !checks && !writes;
}

const std::vector<WatchedTask>& tasks_of(int rank, const std::vector<WatchedProgram>& programs) {
  static const std::vector<WatchedTask> unknown;
  const std::vector<WatchedTask>* found = &unknown;
  for (const WatchedProgram& program : programs) {
    if (program.first <= rank) found = &program.tasks;
  }
  return *found;
}

std::string waiter_text(const StallScene& scene, const std::string& on, std::optional<std::size_t> culprit) {
  const auto waits = [&](std::size_t place) { return place != culprit && scene.ranks[place].waits; };
  std::size_t place = scene.self;
  if (!waits(place)) {
    for (place = 0; place < scene.ranks.size() && !waits(place);) ++place;
    if (place == scene.ranks.size()) return {};
  }
  const RankStatus& rank = scene.ranks[place];
  return concat("; rank ", rank.rank, on, " waits for it ",
                describe_place(rank, tasks_of(rank.rank, scene.programs)));
}

std::string culprit_text(const Stall& stall, const StallScene& scene) {
  const std::string since = fmt::format(" for {:.1f} s", stall.seconds);
  if (stall.reason == Stall::Reason::unheard)
    return concat(scene.others[stall.culprit].name, " has given no sign of life", since,
                  ": its processes are stopped, or the network is gone");
  const RankStatus& culprit = scene.ranks[stall.culprit];
  const std::string who = name_rank(culprit, scene.host);
  const std::string where = describe_place(culprit, tasks_of(culprit.rank, scene.programs));
  switch (stall.reason) {
    case Stall::Reason::gone:
      return concat(who, " has ended ", where);
    case Stall::Reason::stopped:
      return concat(who, " has shown no sign of life", since, ' ', where, ", and is probably stopped");
    case Stall::Reason::stuck:
      return concat(who, " has made no progress", since, ' ', where,
                    exchanges_in_check(culprit) ? kMeetingAdvice : "");
    default: {
      // In a step that a GPU runs.
      const bool between =
          culprit.progress.task == engine::ProgressCounter::kNobody &&
          (culprit.activity == Activity::training || culprit.activity == Activity::evaluating);
      return concat(who, " has waited", since, ' ', where, "; ", why_all_wait(scene),
                    between ? ", or a GPU hangs" : "");
    }
  }
}

std::string stall_text(const Stall& stall, const StallScene& scene) {
  if (!stall.ends) {
    const bool other_node = stall.reason == Stall::Reason::unheard;
    return concat(culprit_text(stall, scene), "; the run continues", other_node ? "" : " without it");
  }
  if (stall.reason == Stall::Reason::waiting) return culprit_text(stall, scene);
  std::optional<std::size_t> culprit;
  if (stall.reason != Stall::Reason::unheard) culprit = stall.culprit;
  return culprit_text(stall, scene) + waiter_text(scene, {}, culprit);
}

}  // namespace cifar_mpi::watch
