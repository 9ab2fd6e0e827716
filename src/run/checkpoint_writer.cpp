#include "run/checkpoint_writer.hpp"

#include <chrono>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cifar_mpi/base/clock.hpp"

namespace cifar_mpi::run {
namespace {

WriteReport write(const std::string& run_dir, const Retention& retention, const Checkpoint& checkpoint) {
  const double started = steady_seconds();
  WriteReport report;
  report.step = checkpoint.progress.step;
  report.path = checkpoint_path(run_dir, report.step);
  try {
    std::error_code ignored;  // the next line says what is wrong
    std::filesystem::create_directory(run_dir + "/checkpoints", ignored);
    write_checkpoint(report.path, checkpoint);
  } catch (const std::exception& error) {
    report.problem = error.what();
  }
  report.seconds = steady_seconds() - started;
  if (!report.problem.empty()) return report;
  try {
    link_latest(run_dir, report.step);
  } catch (const std::exception& error) {
    report.remark = error.what();
  }
  retire_checkpoints(run_dir, report.step, retention);
  return report;
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string run_dir, const Retention& retention)
    : run_dir_(std::move(run_dir)), retention_(retention) {}

void CheckpointWriter::start(Checkpoint checkpoint) {
  pending_ = std::move(checkpoint);
  // Takes no arguments: an attempt to start it that fails would have moved them away.
  const auto task = [this] { return write(run_dir_, retention_, pending_); };
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
  return report;
}

bool CheckpointWriter::done() const {
  return busy() && in_flight_.wait_for(std::chrono::seconds(0)) != std::future_status::timeout;
}

}  // namespace cifar_mpi::run
