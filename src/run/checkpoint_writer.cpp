#include "run/checkpoint_writer.hpp"

#include <chrono>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cifar_mpi/base/clock.hpp"

namespace cifar_mpi::run {

CheckpointWriter::CheckpointWriter(std::string run_dir, const Retention& retention)
    : run_dir_(std::move(run_dir)), retention_(retention), accuracies_(run_dir_) {}

WriteReport CheckpointWriter::write() {
  const double started = steady_seconds();
  WriteReport report;
  report.step = pending_.progress.step;
  report.path = checkpoint_path(run_dir_, report.step);
  try {
    std::error_code ignored;  // the next line says what is wrong
    std::filesystem::create_directory(run_dir_ + "/checkpoints", ignored);
    write_checkpoint(report.path, pending_);
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

/// Killed anywhere in here it leaves `best` with a file that was the best before; the next start sets it right.
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
  done([&] { link_latest(run_dir_, report.step); });
  accuracies_.note_written(report.step, pending_.provenance.test_accuracy);
  std::optional<BestCheckpoint> best;
  const bool looked = done([&] {
    if (retention_.keep_best) best = accuracies_.best(report.step);
  });
  if (!looked) return;  // any of the files may be the best
  const std::optional<std::uint64_t> step = best ? std::optional(best->step) : std::nullopt;
  done([&] { link_best(run_dir_, step); });
  retire_checkpoints(run_dir_, report.step, retention_, step);
}

void CheckpointWriter::start(Checkpoint checkpoint, std::vector<WriteBeside> beside) {
  pending_ = std::move(checkpoint);
  beside_ = std::move(beside);
  // Takes no arguments: an attempt to start it that fails would have moved them away.
  const auto task = [this] { return write(); };
  try {
    in_flight_ = std::async(std::launch::async, task);
  } catch (const std::system_error&) {
    // No thread is to be had: `finish` writes.
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
