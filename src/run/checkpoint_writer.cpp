#include "run/checkpoint_writer.hpp"

#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "cifar_mpi/base/clock.hpp"

namespace cifar_mpi::run {

CheckpointWriter::CheckpointWriter(const Directory& run, const Retention& retention)
    : run_(run), retention_(retention), accuracies_(run, retention.views) {}

WriteReport CheckpointWriter::write() {
  const double started = steady_seconds();
  WriteReport report;
  report.step = pending_.progress.step;
  report.path = checkpoint_path(run_.path(), report.step);
  try {
    const Directory checkpoints = checkpoint_folder(run_);
    write_checkpoint(checkpoints / checkpoint_name(report.step), pending_);
  } catch (const std::exception& error) {
    report.problem = error.what();
  }
  report.seconds = steady_seconds() - started;
  if (report.problem.empty()) look_after(report);
  write_beside(report);
  return report;
}

void CheckpointWriter::write_beside(WriteReport& report) const {
  for (const WriteBeside& write : beside_) {
    try {
      write();
    } catch (const std::exception& error) {
      report.beside = error.what();
    }
  }
}

/// If the process is killed here, `best` names an earlier best file; the next start corrects it.
void CheckpointWriter::look_after(WriteReport& report) {
  const auto done = [&](const auto& action) {
    try {
      action();
      return true;
    } catch (const std::exception& error) {
      report.remark = error.what();
      return false;
    }
  };
  done([&] { link_latest(run_, report.step); });
  accuracies_.note_written(report.step, pending_.provenance.test_accuracy);
  std::optional<BestCheckpoint> best;
  const bool looked = done([&] {
    if (retention_.keep_best) best = accuracies_.kept(report.step);
  });
  if (!looked) return;  // any of the files may be the best
  const std::optional<std::uint64_t> step = best ? std::optional(best->step) : std::nullopt;
  done([&] { link_best(run_, step); });
  retire_checkpoints(run_, report.step, retention_, step);
}

void CheckpointWriter::start(Checkpoint checkpoint, std::vector<WriteBeside> beside) {
  pending_ = std::move(checkpoint);
  beside_ = std::move(beside);
  // The thread takes no arguments, because a failed attempt to start it would already have moved from them.
  const auto task = [this] { return write(); };
  try {
    in_flight_ = std::async(std::launch::async, task);
  } catch (const std::system_error&) {
    // No thread can be started: `finish` writes.
    in_flight_ = std::async(std::launch::deferred, task);
  }
}

WriteReport CheckpointWriter::finish() {
  WriteReport report = in_flight_.get();
  pending_ = {};
  beside_.clear();
  return report;
}

bool CheckpointWriter::done() const {
  return busy() && in_flight_.wait_for(std::chrono::seconds(0)) != std::future_status::timeout;
}

}  // namespace cifar_mpi::run
