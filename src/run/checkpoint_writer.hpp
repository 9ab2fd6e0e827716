#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "run/best_checkpoint.hpp"

namespace cifar_mpi::run {

/// The result of one attempt to write a checkpoint.
struct WriteReport {
  std::uint64_t step = 0;
  std::string path;
  double seconds = 0.0;  ///< from making the file's image to the folder's flush
  std::string problem;   ///< why it was not written; empty if it was
  std::string remark;    ///< other problems: a link could not be set
  std::string beside;    ///< problems with the files written after it
};

/// Writes another file. Throws Error.
using WriteBeside = std::function<void()>;

/// Writes the checkpoints of a run on a thread of its own, one at a time: makes the image, writes, flushes
/// and renames it, sets `latest` and `best`, removes old files.
class CheckpointWriter {
 public:
  /// `run`, the opened run directory, must outlive this object.
  CheckpointWriter(const Directory& run, const Retention& retention);
  /// Waits for the file being written.
  ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Returns at once; the thread writes the file and then those of `beside`. Call `finish` for the previous
  /// one first.
  void start(Checkpoint checkpoint, std::vector<WriteBeside> beside = {});
  bool busy() const { return in_flight_.valid(); }
  /// True when `finish` would not wait.
  bool done() const;
  /// Waits. Call it once for each `start`; never throws for a file that could not be written.
  WriteReport finish();

  /// The best of the checkpoint files up to step `newest`. Call it only while none is being written. Throws Error{io}.
  std::optional<BestCheckpoint> best(std::uint64_t newest) { return accuracies_.best(newest); }

 private:
  WriteReport write();
  void look_after(WriteReport& report);
  void write_beside(WriteReport& report) const;

  const Directory& run_;
  Retention retention_;
  TestAccuracies accuracies_;  ///< used by the thread while a file is being written
  Checkpoint pending_;         ///< the checkpoint being written
  std::vector<WriteBeside> beside_;
  std::future<WriteReport> in_flight_;  ///< its destructor waits
};

}  // namespace cifar_mpi::run
