#pragma once

#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/report/timeline.hpp"

/// The sampled steps of a run on the disk, RUN_DIR/timeline.h5.
///
///   /                        attributes format = "cifar_mpi timeline", version, program, collective, wire,
///                            reproducible (0 or 1; missing: 0), images_per_rank, image_size (missing: 0)
///   /hosts [P] text, /clock_uncertainty_ns [P] int64
///                            by rank
///   /tasks/name [T] text, /tasks/lane [T] int64, /tasks/collective [T] uint8 (0 or 1),
///   /tasks/bytes [T] uint64
///                            by task
///   /tasks/first_after [T+1] uint64, /tasks/after [] int64
///                            `after` of task t: the entries from first_after[t] up to, not including,
///                            first_after[t+1]
///   /steps/step [n] uint64   completed steps before it, ascending
///   /steps/{begin_ns,end_ns} [n,P] int64, /steps/dropped [n,P] uint64
///   /steps/first_slice [n·P+1] uint64
///                            the slices of step i on rank r begin at i·P + r
///   /slices/{task,begin_ns,end_ns} [] int64
namespace cifar_mpi::report {

/// Throws Error{io}.
void write_timeline(const DirectoryEntry& file, const Timeline& timeline);

/// The file is untrusted. Throws Error{checkpoint} with a sentence unless its content is consistent.
Timeline read_timeline(const DirectoryEntry& file);

/// timeline.h5 of a run that trains: rewritten in the background each time steps are added or removed. Rank 0 only.
///
/// It holds the last steps that fit into 64 MiB, at least those of the last `add`. If it cannot be written
/// (disk full, folder gone), one warning is printed and the run continues.
class TimelineFile {
 public:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

  /// Keeps the steps before `step` of an existing file, if they are of the same program on the same hosts, and
  /// removes its other steps from the disk.
  /// Warns about a file that cannot be read and starts a new one. `head` is a timeline without steps.
  TimelineFile(DirectoryEntry file, Timeline head, std::uint64_t step, const Log& log,
               std::uint64_t most_bytes = kMostBytes);
  /// Waits for the file being written.
  ~TimelineFile() = default;
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  /// Adds later steps. Begins to write, unless a file is being written: then the next call or `finish` writes
  /// them. The uncertainties are of these steps; the file has the largest.
  void add(std::vector<Timeline::Step> steps, const std::vector<std::int64_t>& clock_uncertainty_ns);
  /// Returns when all steps are on the disk or a warning was printed.
  void finish();

 private:
  struct Added {
    std::vector<Timeline::Step> steps;
    std::vector<std::int64_t> clock_uncertainty_ns;
  };

  void write_next();
  void take(Added added);
  void wait();

  const DirectoryEntry entry_;
  Log log_;
  const std::uint64_t most_bytes_;
  Timeline timeline_;           ///< owned by the thread while it writes
  std::vector<Added> waiting_;  ///< not in the timeline yet
  bool warned_ = false;
  std::future<std::string> in_flight_;  ///< why it could not be written; its destructor waits
};

}  // namespace cifar_mpi::report
