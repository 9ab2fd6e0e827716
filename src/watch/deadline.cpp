#include "watch/deadline.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::watch {
namespace {

std::string in_words(double seconds) {
  if (seconds < 120.0) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200.0) return fmt::format("{:.1f} min", seconds / 60.0);
  return fmt::format("{:.1f} h", seconds / 3600.0);
}

}  // namespace

TimeLimits time_limits(double stop_after_minutes, const std::function<const char*(const char*)>& environment,
                       double wall_now) {
  TimeLimits limits;
  if (stop_after_minutes > 0.0) limits.stop_after_s = 60.0 * stop_after_minutes;
  if (const char* const end = environment("SLURM_JOB_END_TIME")) {
    constexpr double kTenYears = 10.0 * 365.0 * 86400.0;
    char* rest = nullptr;
    const double left = std::strtod(end, &rest) - wall_now;
    if (rest != end && *rest == '\0' && left > 0.0 && left < kTenYears) limits.job_end_s = left;
  }
  return limits;
}

void Deadline::checkpoint_took(double seconds) {
  longest_checkpoint_ = std::max(longest_checkpoint_, seconds);
}

double Deadline::margin() const {
  return std::max(kLeastMargin, 3.0 * longest_checkpoint_ + 2.0 * longest_pause_);
}

std::optional<std::string> Deadline::due(double now) {
  if (now > last_) {
    longest_pause_ = std::max(longest_pause_, now - last_);
    last_ = now;
  }
  const double passed = last_ - began_;
  if (passed >= limits_.stop_after_s)
    return concat("stopping: --stop-after is reached after ", in_words(passed), " of training");
  if (passed >= limits_.job_end_s - margin()) {
    return concat("stopping: the job ends in ", in_words(std::max(0.0, limits_.job_end_s - passed)),
                  ", which the last checkpoint needs");
  }
  return std::nullopt;
}

std::string Deadline::describe() const {
  std::string text;
  if (std::isfinite(limits_.stop_after_s)) text = concat(in_words(limits_.stop_after_s), " (--stop-after)");
  if (std::isfinite(limits_.job_end_s)) {
    text += concat(text.empty() ? "" : ", or ", in_words(margin()), " before the job's end in ",
                   in_words(limits_.job_end_s));
  }
  return text.empty() ? text : concat("will stop with a checkpoint after ", text);
}

}  // namespace cifar_mpi::watch
