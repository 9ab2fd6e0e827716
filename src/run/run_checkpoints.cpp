#include "run/run_checkpoints.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::run {

std::string without_paths(const std::string& configuration) {
  std::string kept;
  std::istringstream lines(configuration);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find_first_of(" ="));
    const std::size_t first = std::min(line.find_first_not_of("\"' =", name.size()), line.size());
    const std::string value = line.substr(first, line.find_last_not_of("\"' ") + 1 - first);
    const bool path = name == "data" || name == "run-dir" || (name == "init-from" && value != "none") ||
                      (name == "resume" && value != "auto" && value != "never");
    if (!path) kept.append(line).append(1, '\n');
  }
  return kept;
}

void begin_retention(const Directory& run, std::uint64_t step, const Retention& retention) {
  std::optional<std::uint64_t> best;
  if (retention.keep_best) {
    if (const auto found = TestAccuracies(run, retention.views).kept(step)) best = found->step;
    link_best(run, best);
  }
  if (!open_checkpoint(run, step).missing()) retire_checkpoints(run, step, retention, best);
}

RunCheckpoints::RunCheckpoints(const comm::World& world, const Directory& run, const Retention& retention,
                               Snapshot snapshot, report::ProgressView& view)
    : world_(world),
      snapshot_(std::move(snapshot)),
      view_(view),
      run_(run),
      retention_(retention),
      writer_(run, retention) {}

RunCheckpoints::~RunCheckpoints() { collect(); }

std::optional<BestCheckpoint> RunCheckpoints::best(std::uint64_t newest) {
  try {
    if (!writer_.busy()) return writer_.best(newest);
  } catch (const Error& error) {
    view_.warning(error.what());
  }
  return std::nullopt;
}

bool RunCheckpoints::would_be_best(std::uint64_t step, double test_accuracy) {
  bool better = false;
  if (world_.rank() == 0) {
    collect();
    const std::optional<BestCheckpoint> found = best(step);
    better = !found || found->step == step || test_accuracy > found->test_accuracy;
  }
  world_.broadcast(better);
  return better;
}

void RunCheckpoints::save(std::uint64_t step, std::optional<double> test_accuracy) {
  world_.together([&] {
    if (world_.rank() != 0) return;
    const double started = steady_seconds();
    collect();
    std::vector<WriteBeside> beside;
    for (const Beside& make : beside_) beside.push_back(make());
    writer_.start(snapshot_(step, test_accuracy), std::move(beside));
    copy_s_ = steady_seconds() - started;
  });
}

void RunCheckpoints::poll() {
  if (writer_.done()) collect();
}

void RunCheckpoints::require_written() {
  world_.together([&] {
    collect();
    if (!unwritten_.empty()) throw Error(ErrorKind::io, unwritten_);
  });
}

void RunCheckpoints::collect() {
  if (writer_.busy()) report(writer_.finish());
}

void RunCheckpoints::report(const WriteReport& report) {
  if (!report.beside.empty() && !warned_) {
    view_.warning(concat(report.beside, "; training continues"));
    warned_ = true;
  }
  if (!report.problem.empty()) {
    const std::string newest = written_ ? concat("that of step ", *written_, " is the newest of this process")
                                        : std::string("this process has written none yet");
    const std::string text = concat("the checkpoint of step ", report.step, " could not be written (", newest,
                                    "): ", report.problem);
    // If it was written before, only its test accuracy is missing.
    if (written_ != report.step) unwritten_ = text;
    view_.warning(text);
    return;
  }
  if (!report.remark.empty()) view_.warning(report.remark);
  if (written_ != report.step) {
    view_.event(concat("checkpoint: ", report.path,
                       fmt::format(" (delayed training by {:.1f} ms, written in {:.1f} ms)", 1e3 * copy_s_,
                                   1e3 * report.seconds)));
  }
  written_ = report.step;
  unwritten_.clear();
  last_seconds_ = copy_s_ + report.seconds;
}

}  // namespace cifar_mpi::run
