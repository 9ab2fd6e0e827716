#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/comm/heartbeat.hpp"

/// Who does not get on: the watchdog's judgement, without threads and without a clock of its own.
namespace cifar_mpi::watch {

/// What one look at a rank of this node shows.
struct RankStatus {
  int rank = 0;
  int pid = 0;
  bool gone = false;  ///< its process has ended
  comm::Activity activity = comm::Activity::starting;
  std::uint64_t step = 0;  ///< completed steps
  std::uint64_t ticks = 0;
  engine::ProgressCounter::Snapshot progress;
};

struct StallLimits {
  double timeout_s = 120.0;  ///< without getting on; 0: for ever
  /// That many times as long while starting and while a checkpoint is written: both wait for file systems.
  double patience = 5.0;
  /// A rank that ends by itself is mostly dealt with by the launcher, and says more than its peers can.
  double gone_s = 1.0;
};

/// Somebody of this node does not get on.
struct Stall {
  enum class Reason : std::uint8_t { gone, stopped, stuck, waiting };
  Reason reason = Reason::waiting;
  std::size_t culprit = 0;  ///< place of the rank that holds the others up; with `waiting` one that waits
  double seconds = 0.0;     ///< without a sign of it
};

/// Looks at the ranks of a node again and again, and says when one has not moved for too long.
///
/// Time is added up from look to look, at most kMostPerLook each: a process that was stopped and goes on, or
/// a clock that jumps, does not make everybody late; a clock that goes back adds nothing.
class StallJudge {
 public:
  static constexpr double kMostPerLook = 1.0;

  explicit StallJudge(const StallLimits& limits) : limits_(limits) {}

  /// `now` in seconds; `ranks` are always the same, in the same order; `waits(place)` says whether what that
  /// rank is in is waiting for others. Of several that do not move the one to blame is, in this order: gone;
  /// stopped (not even its watchdog moves); stuck in work of its own; else all wait for another node.
  std::optional<Stall> look(double now, const std::vector<RankStatus>& ranks, const std::vector<bool>& waits);

 private:
  struct Watched {
    RankStatus last;
    double gone_s = 0.0;
    double no_tick_s = 0.0;
    double no_progress_s = 0.0;
  };
  void note(const std::vector<RankStatus>& ranks, double passed);
  double limit(comm::Activity activity) const;

  StallLimits limits_;
  std::optional<double> last_look_;
  std::vector<Watched> watched_;
};

/// What is to be known of a task of the training program.
struct WatchedTask {
  std::string name;
  bool collective = false;  ///< the rank waits for others in it
};

/// What ranks replay: those from `first` on, up to the first of the next one.
struct WatchedProgram {
  int first = 0;
  std::vector<WatchedTask> tasks;
};
/// That of a rank; without tasks where it is not known. `programs` stand in rank order.
const std::vector<WatchedTask>& tasks_of(int rank, const std::vector<WatchedProgram>& programs);

/// "rank 2 on host (pid 4711)"; and where it is: "in step 41, task conv2 backward", "while starting".
std::string name_rank(const RankStatus& rank, const std::string& host);
std::string describe_place(const RankStatus& rank, const std::vector<WatchedTask>& tasks);

/// The one or two lines for people: who does not move since when and where it is, and for whom the others
/// wait. `programs` are those of all ranks; `self` is who speaks.
std::string stall_text(const Stall& stall, const std::vector<RankStatus>& ranks, std::size_t self,
                       const std::string& host, const std::vector<WatchedProgram>& programs);

}  // namespace cifar_mpi::watch
