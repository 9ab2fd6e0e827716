#include "report/step_reporter.hpp"

#include <utility>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::report {

StepReporter::StepReporter(int rank, std::vector<std::string> hosts, const StepScale& scale,
                           const optim::Schedule& schedule, const StepOutputs& out, Communicated communicated,
                           Pushes pushes)
    : rank_(rank),
      hosts_(std::move(hosts)),
      scale_(scale),
      schedule_(schedule),
      out_(out),
      watch_(static_cast<int>(hosts_.size())),
      communicated_(std::move(communicated)),
      pushes_(std::move(pushes)) {}

void StepReporter::begin_interval(std::uint64_t completed) {
  interval_started_ = steady_seconds();
  interval_step_ = completed;
  interval_communicated_ = communicated_();
  if (started_ < 0.0) started_ = interval_started_;
}

StepReporter::Done StepReporter::note_done(const engine::Replay& replay) const {
  return {steady_seconds(), has_line(replay) ? communicated_() : -1.0};
}

void StepReporter::add(const engine::Replay& replay, const Done& done, const engine::StepRecord& record) {
  if (rank_ != 0) return;
  watch_.add(record, scale_.partial_aggregation ? 1 : static_cast<int>(replay.steps()));
  out_.board.note(record);
  for (std::uint64_t step = replay.begin; step < replay.end; ++step) announce_rate(step);
  if (has_line(replay)) report(replay.end, done, record);
}

void StepReporter::announce_rate(std::uint64_t step) {
  const double rate = schedule_.rate(step);
  if (rate == announced_rate_) return;
  // On a slope the rate changes every step: the log reports only the two ends, metrics.jsonl the rate in
  // every line.
  const bool sliding = schedule_.on_slope(step) && announced_rate_ >= 0.0;
  if (!sliding && step > 0) out_.view.event(concat("learning rate: ", rate, " from step ", step + 1));
  announced_rate_ = rate;
}

void StepReporter::report(std::uint64_t end, const Done& done, const engine::StepRecord& record) {
  const double now = done.seconds;
  StepReport r;
  r.step = end;
  r.total_steps = scale_.total_steps;
  r.epoch = static_cast<double>(r.step) / scale_.steps_per_epoch;
  r.cross_entropy = record.cross_entropy;
  r.decay_term = record.decay_term;
  r.train_accuracy = record.correct / record.samples;
  r.test_accuracy = test_accuracy_;
  r.learning_rate = schedule_.rate(end - 1);
  r.gradient_norm = record.gradient_norm;
  const auto steps = static_cast<double>(r.step - interval_step_);
  r.seconds_per_step = (now - interval_started_) / steps;
  r.images_per_second = static_cast<double>(scale_.global_batch) / r.seconds_per_step;
  r.seconds = now - started_;
  const double communicated = done.communicated;
  if (communicated >= 0.0) r.exposed_communication_ms = 1e3 * (communicated - interval_communicated_) / steps;
  if (const std::optional<watch::RankTimes> times = watch_.take()) {
    r.compute_ms_min = times->least;
    r.compute_ms_median = times->median;
    r.compute_ms_max = times->most;
    r.slowest_rank = times->slowest;
    if (const std::string text = watch::slowest_text(*times, hosts_); !text.empty()) out_.view.event(text);
  }
  r.pushes = pushes_();
  out_.view.report(r);
  out_.metrics.write(r);
  out_.board.write(r);
  interval_started_ = now;
  interval_step_ = r.step;
  interval_communicated_ = communicated;
}

}  // namespace cifar_mpi::report
