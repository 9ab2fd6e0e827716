#include "cifar_mpi/optim/schedule.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::optim {
namespace {

/// Steps are counted exactly in double up to here; nobody trains longer.
constexpr double kMostSteps = 0x1.0p53;
constexpr double kMany = 1e9;  // more than this is a slip of the keyboard

void expect(bool good, const char* option, const char* wanted, double found) {
  if (good) return;
  throw Error(ErrorKind::usage, fmt::format("{} must be {}, not {:g}", option, wanted, found));
}

/// floor(N/G · epochs). The product comes before the division, so that whole epochs of a G that does not
/// divide N stay exact.
std::uint64_t steps_of(double epochs, const ScheduleSpec& spec) {
  const double steps = epochs * static_cast<double>(spec.samples) / static_cast<double>(spec.global_batch);
  return static_cast<std::uint64_t>(std::min(steps, kMostSteps));
}

double scale_of(const ScheduleSpec& spec) {
  const double ratio = static_cast<double>(spec.global_batch) / static_cast<double>(spec.reference_batch);
  switch (spec.scaling) {
    case LrScaling::none:
      return 1.0;
    case LrScaling::linear:
      return ratio;
    case LrScaling::sqrt:
      return std::sqrt(ratio);
  }
  return 1.0;
}

std::string scaling_text(const ScheduleSpec& spec, double scaled_rate) {
  const auto scaled = [&](const char* how) {
    return fmt::format("{} {}/{} = {:g}", how, spec.global_batch, spec.reference_batch, scaled_rate);
  };
  switch (spec.scaling) {
    case LrScaling::none:
      return "none";
    case LrScaling::linear:
      return scaled("linear");
    case LrScaling::sqrt:
      return scaled("sqrt");
  }
  return "none";
}

}  // namespace

void check(const ScheduleSpec& spec) {
  const auto above_zero = [](double value) { return value > 0.0 && value <= kMany; };
  expect(above_zero(spec.base_rate), "--lr", "above 0 and at most 1e9", spec.base_rate);
  expect(spec.decay_factor > 0.0 && spec.decay_factor <= 1.0, "--lr-decay-factor", "above 0 and at most 1",
         spec.decay_factor);
  expect(above_zero(spec.epochs_per_decay), "--epochs-per-decay", "above 0 and at most 1e9",
         spec.epochs_per_decay);
  expect(spec.warmup_epochs >= 0.0 && spec.warmup_epochs <= kMany, "--warmup-epochs", "from 0 to 1e9",
         spec.warmup_epochs);
  expect(spec.samples > 0, "the training set of a schedule", "of at least 1 sample", 0.0);
  expect(spec.global_batch > 0, "the global batch of a schedule", "of at least 1", 0.0);
  expect(spec.reference_batch > 0, "the reference batch of --lr-scaling", "of at least 1", 0.0);
}

Schedule::Schedule(const ScheduleSpec& spec) : spec_(spec) {
  check(spec);
  rule_.scaled_rate = spec.base_rate * scale_of(spec);
  expect(std::isfinite(rule_.scaled_rate) && rule_.scaled_rate > 0.0, "--lr",
         "a finite rate above 0 when it is scaled", rule_.scaled_rate);
  rule_.factor = spec.decay_factor;
  rule_.decay_steps = std::max<std::uint64_t>(steps_of(spec.epochs_per_decay, spec), 1);
  rule_.warmup_steps = steps_of(spec.warmup_epochs, spec);
}

double Schedule::rate(std::uint64_t step) const {
  return learning_rate(rule_, step, [](double x, double y) { return std::pow(x, y); });
}

std::string Schedule::describe() const {
  const std::string warmup =
      rule_.warmup_steps == 0 ? "no warm-up" : concat("warm-up over ", rule_.warmup_steps, " steps");
  return concat("lr ", fmt::format("{:g}", spec_.base_rate), " (", scaling_text(spec_, rule_.scaled_rate),
                "), x", fmt::format("{:g}", spec_.decay_factor), " every ", rule_.decay_steps, " steps (",
                fmt::format("{:g}", spec_.epochs_per_decay), " epochs of ", spec_.samples, " / global batch ",
                spec_.global_batch, "), ", warmup);
}

}  // namespace cifar_mpi::optim
