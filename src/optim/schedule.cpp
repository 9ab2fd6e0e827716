#include "cifar_mpi/optim/schedule.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::optim {
namespace {

/// Steps are counted exactly in double up to here; no run is longer.
constexpr double kMostSteps = 0x1.0p53;

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
    return fmt::format(" ({} {}/{} = {:g})", how, spec.global_batch, spec.reference_batch, scaled_rate);
  };
  switch (spec.scaling) {
    case LrScaling::none:
      return {};
    case LrScaling::linear:
      return scaled("linear");
    case LrScaling::sqrt:
      return scaled("sqrt");
  }
  return {};
}

bool ends_with_the_run(ScheduleKind kind) {
  return kind == ScheduleKind::linear || kind == ScheduleKind::cosine || kind == ScheduleKind::one_cycle;
}

void check_boundaries(const std::vector<double>& at) {
  const std::string example = "--decay-at must hold fractions of the run, such as 0.5,0.75";
  if (at.empty()) throw Error(ErrorKind::usage, concat("--schedule steps has no boundaries: ", example));
  if (at.size() > RateRule::kMostDrops) {
    throw Error(ErrorKind::usage,
                concat(example, ", at most ", RateRule::kMostDrops, " of them, not ", at.size()));
  }
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (!(at[i] > 0.0 && at[i] < 1.0))
      throw Error(ErrorKind::usage, fmt::format("{}, each above 0 and below 1, not {:g}", example, at[i]));
    if (i > 0 && at[i] <= at[i - 1]) {
      throw Error(ErrorKind::usage, fmt::format("{}, each larger than the one before: {:g} follows {:g}",
                                                example, at[i], at[i - 1]));
    }
  }
}

/// "…, x0.1 every 136718 steps (350 epochs of 50000 / global batch 128), ": what follows the base rate.
std::string course_text(const ScheduleSpec& spec, const RateRule& rule) {
  const auto to_the_end = [&](const char* how) {
    return concat(how, " to ", fmt::format("{:g}", rule.scaled_rate * rule.final_share), " at step ",
                  rule.total_steps,
                  spec.total_steps > rule.total_steps
                      ? concat(" and for ", spec.total_steps - rule.total_steps, " steps more")
                      : std::string());
  };
  switch (rule.kind) {
    case ScheduleKind::staircase:
      return concat("x", fmt::format("{:g}", spec.decay_factor), " every ", rule.decay_steps, " steps (",
                    fmt::format("{:g}", spec.epochs_per_decay), " epochs of ", spec.samples,
                    " / global batch ", spec.global_batch, ")");
    case ScheduleKind::steps: {
      std::string at;
      for (int i = 0; i < rule.drops; ++i) at += concat(i == 0 ? "" : ", ", rule.drop_at[i]);
      return concat("x", fmt::format("{:g}", spec.decay_factor), " at steps ", at, " of ", rule.total_steps);
    }
    case ScheduleKind::linear:
      return to_the_end("linear");
    case ScheduleKind::cosine:
      return to_the_end("by half a cosine");
    case ScheduleKind::one_cycle:
      return concat("one cycle: up from ", fmt::format("{:g}", rule.scaled_rate * rule.initial_share),
                    " to step ", rule.warmup_steps, ", then ", to_the_end("linear"));
  }
  return {};
}

}  // namespace

void check(const ScheduleSpec& spec) {
  expect(spec.samples > 0, "the training set of a schedule", "of at least 1 sample", 0.0);
  expect(spec.global_batch > 0, "the global batch of a schedule", "of at least 1", 0.0);
  expect(spec.reference_batch > 0, "the reference batch of --lr-scaling", "of at least 1", 0.0);
  if (spec.kind == ScheduleKind::steps) check_boundaries(spec.decay_at);
  expect(
      spec.kind != ScheduleKind::one_cycle || spec.warmup_epochs > 0.0, "--warmup-epochs",
      "above 0 with --schedule one-cycle, whose rate rises in them (a fifth to a third of the run is usual)",
      spec.warmup_epochs);
}

Schedule::Schedule(const ScheduleSpec& spec) : spec_(spec) {
  check(spec);
  rule_.scaled_rate = spec.base_rate * scale_of(spec);
  expect(std::isfinite(rule_.scaled_rate) && rule_.scaled_rate > 0.0, "--lr",
         "a finite rate above 0 when it is scaled", rule_.scaled_rate);
  rule_.factor = spec.decay_factor;
  rule_.decay_steps = std::max<std::uint64_t>(steps_of(spec.epochs_per_decay, spec), 1);
  rule_.warmup_steps = steps_of(spec.warmup_epochs, spec);
  rule_.kind = spec.kind;
  const std::uint64_t tail = steps_of(spec.tail_epochs, spec);
  rule_.total_steps = spec.total_steps - std::min(tail, spec.total_steps);
  rule_.initial_share = spec.initial_share;
  rule_.final_share = spec.final_share;
  for (const double fraction : spec.decay_at) {
    rule_.drop_at[rule_.drops++] =
        static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(spec.total_steps)));
  }
  if (ends_with_the_run(spec.kind) && rule_.warmup_steps >= rule_.total_steps) {
    std::string taken, remedy = "train longer";
    if (rule_.warmup_steps > 0) {
      taken = fmt::format("--warmup-epochs {:g} takes {} steps", spec.warmup_epochs, rule_.warmup_steps);
      remedy = "warm up for less or train longer";
    }
    if (tail > 0) {
      taken += fmt::format("{}--tail-epochs {:g} takes {} steps", taken.empty() ? "" : " and ",
                           spec.tail_epochs, tail);
      if (rule_.warmup_steps < spec.total_steps) remedy += ", or give --tail-epochs off";
    }
    throw Error(ErrorKind::usage, fmt::format("{}, but the run has {}, and --schedule {} needs more; {}",
                                              taken, spec.total_steps, to_string(spec.kind), remedy));
  }
}

double Schedule::rate(std::uint64_t step) const { return learning_rate(rule_, step, HostMath{}); }

bool Schedule::on_slope(std::uint64_t step) const {
  const bool one_cycle = rule_.kind == ScheduleKind::one_cycle;
  const std::uint64_t peak =
      one_cycle ? rule_.warmup_steps : std::max<std::uint64_t>(rule_.warmup_steps, 1) - 1;
  return step > 0 && (step < peak || (ends_with_the_run(rule_.kind) && step > rule_.warmup_steps &&
                                      step <= rule_.total_steps));
}

std::string Schedule::describe() const {
  const std::string warmup = rule_.kind == ScheduleKind::one_cycle ? ""
                             : rule_.warmup_steps == 0
                                 ? ", no warm-up"
                                 : concat(", warm-up over ", rule_.warmup_steps, " steps");
  return concat("lr ", fmt::format("{:g}", spec_.base_rate), scaling_text(spec_, rule_.scaled_rate), ", ",
                course_text(spec_, rule_), warmup);
}

}  // namespace cifar_mpi::optim
