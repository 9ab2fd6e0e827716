#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/comm/heartbeat.hpp"

/// Decides which ranks make no progress; has no threads and no clock of its own.
namespace cifar_mpi::watch {

/// A snapshot of a rank of this node.
struct RankStatus {
  int rank = 0;
  int pid = 0;
  bool gone = false;   ///< its process has ended
  bool waits = false;  ///< it waits for other ranks at the moment
  bool spare = false;  ///< comm::Heartbeat::spare
  bool logs = false;   ///< comm::Heartbeat::logs
  comm::Activity activity = comm::Activity::starting;
  std::uint64_t step = 0;  ///< completed steps
  std::uint64_t ticks = 0;
  engine::ProgressCounter::Snapshot progress;
};

/// A node of the job other than this one, as its watchdogs have reported it.
struct OtherNode {
  std::string name;     ///< "node2 (rank 4 and 3 others)"
  bool heard = false;   ///< at least one report has come
  double quiet = 0.0;   ///< StallJudge::quiet of the last report
  double silent_s = 0;  ///< since the last report
  bool missed = false;  ///< its silence has been reported
};

struct StallLimits {
  double timeout_s = 120.0;  ///< without progress; 0: never
  /// Factor of the timeout while starting, in each check of a device and while a checkpoint is written, which all
  /// wait for file systems, and while another node has never reported.
  double patience = 5.0;
  /// The launcher usually handles a rank that exits, and that rank has a better message than its peers.
  double gone_s = 1.0;
};

/// Why a run is held up.
struct Stall {
  /// In the order of blame. `unheard`: another node has stopped reporting.
  enum class Reason : std::uint8_t { gone, stopped, stuck, unheard, waiting };
  Reason reason = Reason::waiting;
  /// Index of the rank that holds the others up; with `waiting`, of a rank that waits; with `unheard`, of the node.
  std::size_t culprit = 0;
  double seconds = 0.0;  ///< without progress or a sign of life
  bool ends = true;      ///< false: the run continues, and a line reports it
};

/// Watches the ranks of a node and finds what must end the job:
///
///   gone, stopped     a rank has ended; or its watchdog, too, is stopped for `timeout_s`, and others need it
///   stuck             a rank makes no progress in work of its own for `timeout_s`
///   unheard, waiting  no rank of the whole job makes progress for `timeout_s`
///
/// So a rank that waits for others is never blamed while any rank of the job makes progress. A rank that is writing
/// its log counts as making progress: the reader may be stopped.
///
/// Each look adds the time since the previous one, at most kMostPerLook: neither a process that was stopped
/// and resumed nor a clock that jumps makes all ranks late. A clock that goes back adds nothing.
class StallJudge {
 public:
  static constexpr double kMostPerLook = 1.0;
  /// Reports come once a second; a rank whose watchdog is stopped for this long sends none.
  static constexpr double kAbsent = 2.0;
  static constexpr double kReportIsValid = 5.0;

  /// `self`: this rank's index. `others`: all other nodes of the job.
  explicit StallJudge(const StallLimits& limits, std::size_t self = 0, std::vector<OtherNode> others = {})
      : limits_(limits), self_(self), others_(std::move(others)) {}

  /// `now` in seconds; `ranks` are always the same, in the same order. Of several ranks that make no progress
  /// one is blamed, by the order of Stall::Reason and then by the lowest step.
  std::optional<Stall> look(double now, const std::vector<RankStatus>& ranks);

  /// A report of `others[node]`.
  void hear(std::size_t node, double quiet);
  const std::vector<OtherNode>& others() const { return others_; }
  /// Whether this rank reports for its node and judges waits: it is the first whose watchdog runs.
  bool speaks() const;
  /// The share of its timeout that the most active rank of the node has used. At 1 no rank of the node makes
  /// progress; infinite when all are exiting.
  double quiet() const;

 private:
  struct Watched {
    RankStatus last;
    double gone_s = 0.0;
    double no_tick_s = 0.0;
    double no_progress_s = 0.0;
    bool reported = false;  ///< that the run continues without it
  };
  void note(const std::vector<RankStatus>& ranks, double passed);
  double limit(comm::Activity activity) const;
  double quiet_of(const OtherNode& node) const;
  bool job_is_quiet() const;
  template <class Blame>
  std::optional<Stall> worst(const Blame& blame) const;
  std::optional<Stall> held_up() const;
  std::optional<Stall> held_up_while_all_wait() const;
  std::optional<Stall> missing();

  StallLimits limits_;
  std::size_t self_;
  std::vector<OtherNode> others_;
  std::optional<double> last_look_;
  std::vector<Watched> watched_;
};

/// A task of the training program.
struct WatchedTask {
  std::string name;
  bool collective = false;  ///< the rank waits for others in it
};

/// The program that the ranks from `first` on replay, up to the `first` of the next program.
struct WatchedProgram {
  int first = 0;
  std::vector<WatchedTask> tasks;
};
/// The program of a rank; empty if it is unknown. `programs` are in rank order.
const std::vector<WatchedTask>& tasks_of(int rank, const std::vector<WatchedProgram>& programs);

/// Whether a rank with this status waits for others. In a task it does if the task is a collective. Outside
/// of tasks it does in a vote or another call of all ranks, except for rank 0 at a checkpoint, which it
/// writes, and a rank in a check of its device.
bool waits_for_others(const RankStatus& rank, const std::vector<WatchedTask>& tasks);

/// "rank 2 on host (pid 4711)"; and where it is: "in step 41, task conv2 backward", "while starting".
std::string name_rank(const RankStatus& rank, const std::string& host);
std::string describe_place(const RankStatus& rank, const std::vector<WatchedTask>& tasks);

/// The facts for the message about a stall.
struct StallScene {
  const std::vector<RankStatus>& ranks;
  std::size_t self = 0;  ///< the rank that prints
  const std::string& host;
  const std::vector<WatchedProgram>& programs;  ///< of all ranks
  const std::vector<OtherNode>& others;
};

/// Which rank makes no progress, since when, and where it is.
std::string culprit_text(const Stall& stall, const StallScene& scene);
/// "; rank 0 waits for it in step 41, …" of a rank of this node that waits, preferably this one; empty if
/// none does. `on` follows the rank.
std::string waiter_text(const StallScene& scene, const std::string& on = {},
                        std::optional<std::size_t> culprit = std::nullopt);
/// Both texts.
std::string stall_text(const Stall& stall, const StallScene& scene);

}  // namespace cifar_mpi::watch
