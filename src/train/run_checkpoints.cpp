#include "train/run_checkpoints.hpp"

#include <utility>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::train {

RunCheckpoints::RunCheckpoints(const SessionState& state, report::ProgressView& view)
    : s_(state),
      view_(view),
      schedule_(schedule_spec(state.config, state.sizes, state.info.train_count)),
      writer_(state.config.run_dir, {state.config.keep, state.config.keep_every}) {}

RunCheckpoints::~RunCheckpoints() { settle(); }

void RunCheckpoints::save(std::uint64_t step, std::optional<double> test_accuracy) {
  s_.world.together([&] {
    if (s_.world.rank() != 0) return;
    const double started = steady_seconds();
    settle();
    writer_.start(snapshot(step, test_accuracy));
    copy_s_ = steady_seconds() - started;
  });
}

void RunCheckpoints::poll() {
  if (writer_.done()) settle();
}

void RunCheckpoints::require_written() {
  s_.world.together([&] {
    settle();
    if (!unwritten_.empty()) throw Error(ErrorKind::io, unwritten_);
  });
}

void RunCheckpoints::settle() {
  if (writer_.busy()) report(writer_.finish());
}

void RunCheckpoints::report(const run::WriteReport& report) {
  if (!report.problem.empty()) {
    const std::string newest = written_ ? concat("that of step ", *written_, " is the newest of this process")
                                        : std::string("this process has written none yet");
    const std::string text = concat("the checkpoint of step ", report.step, " could not be written (", newest,
                                    "): ", report.problem);
    // When it was written before, only its test accuracy is missing.
    if (written_ != report.step) unwritten_ = text;
    view_.warning(text);
    return;
  }
  if (!report.remark.empty()) view_.warning(report.remark);
  if (written_ != report.step) {
    view_.event(
        concat("checkpoint: ", report.path,
               format(" (%.1f ms of training, %.1f ms beside it)", 1e3 * copy_s_, 1e3 * report.seconds)));
  }
  written_ = report.step;
  unwritten_.clear();
  last_seconds_ = copy_s_ + report.seconds;
}

run::Checkpoint RunCheckpoints::snapshot(std::uint64_t step, std::optional<double> test_accuracy) const {
  run::Checkpoint c;
  c.model = export_block(*s_.backend, *s_.tower, s_.network.params, s_.params);
  c.ema = export_block(*s_.backend, *s_.tower, s_.network.params, s_.ema);
  c.progress = s_.progress;
  c.progress.step = step;
  c.progress.epoch = static_cast<double>(step) / s_.sizes.steps_per_epoch;
  c.progress.samples_seen = step * s_.sizes.global_batch;
  run::Provenance& from = c.provenance;
  from.ranks = s_.world.size();
  from.global_batch = s_.sizes.global_batch;
  from.learning_rate = schedule_.rate(step);
  from.learning_rate_rule = schedule_.describe();
  from.precision = engine::to_string(s_.config.precision);
  from.backend = s_.backend->description();
  from.kernels = s_.tower->plan_text();
  from.configuration = s_.config.text;
  from.git_revision = git_revision();
  from.time = wall_time();
  from.test_accuracy = test_accuracy;
  return c;
}

}  // namespace cifar_mpi::train
