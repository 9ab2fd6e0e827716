#include "cifar_mpi/report/efficiencies.hpp"

#include <algorithm>

#include "report/replay.hpp"

namespace cifar_mpi::report {
namespace {

/// 1 if `whole` is 0.
double share(double part, double whole) { return whole > 0.0 ? part / whole : 1.0; }

/// Useful nanoseconds per image; empty if the timeline lacks the number of images.
std::optional<double> per_image(const Timeline& timeline, const SampledSteps& sampled, const Usage& usage) {
  const double images = static_cast<double>(timeline.images_per_rank) *
                        static_cast<double>(sampled.steps.size() * sampled.ranks.size());
  if (images <= 0.0 || usage.useful_sum <= 0.0) return std::nullopt;
  return usage.useful_sum / images;
}

}  // namespace

double useful_ns(const Timeline& timeline, const std::vector<Stretch>& stretches) {
  double sum = 0.0;
  for (const Stretch& stretch : stretches) {
    if (stretch.task != Stretch::kNobody && !is_collective(timeline, stretch.task)) sum += stretch.ns();
  }
  return sum;
}

Usage usage_of(const Timeline& timeline, const SampledSteps& sampled) {
  Usage usage;
  usage.useful.assign(sampled.ranks.size(), 0.0);
  std::vector<double> times(sampled.ranks.size(), 0.0);
  for (const SampledSteps::Step& step : sampled.steps) {
    double most = 0.0;
    for (std::size_t r = 0; r < step.ranks.size(); ++r) {
      const double useful = useful_ns(timeline, step.ranks[r]);
      usage.useful[r] += useful;
      usage.useful_sum += useful;
      most = std::max(most, useful);
      for (const Stretch& stretch : step.ranks[r]) times[r] += stretch.ns();
    }
    usage.useful_most_each += most;
  }
  if (sampled.steps.empty()) return usage;
  usage.useful_most = std::ranges::max(usage.useful);
  usage.time = std::ranges::max(times);
  usage.ideal = std::clamp(replay_ns(timeline, sampled, {}), usage.useful_most,
                           std::max(usage.time, usage.useful_most));
  return usage;
}

Efficiencies efficiencies(const Timeline& timeline) {
  const SampledSteps sampled = sampled_steps(timeline);
  const Usage usage = usage_of(timeline, sampled);
  Efficiencies e;
  e.ranks = static_cast<int>(sampled.ranks.size());
  e.missing_ranks = sampled.missing;
  e.steps = static_cast<int>(sampled.steps.size());
  e.left_out_steps = sampled.left_out;
  if (e.steps == 0) return e;
  const double mean = usage.useful_sum / e.ranks;
  e.step_ms = 1e-6 * usage.time / e.steps;
  e.parallel = share(mean, usage.time);
  e.load_balance = share(mean, usage.useful_most);
  e.communication = share(usage.useful_most, usage.time);
  e.serialization = share(usage.useful_most, usage.ideal);
  e.transfer = share(usage.ideal, usage.time);
  e.load_balance_per_step = share(mean, usage.useful_most_each);
  return e;
}

Efficiencies efficiencies(const Timeline& timeline, const Timeline& baseline) {
  Efficiencies e = efficiencies(timeline);
  const SampledSteps own = sampled_steps(timeline), other = sampled_steps(baseline);
  const auto here = per_image(timeline, own, usage_of(timeline, own));
  const auto there = per_image(baseline, other, usage_of(baseline, other));
  if (!here || !there) return e;
  e.computation_scaling = *there / *here;
  e.baseline_ranks = static_cast<int>(other.ranks.size());
  return e;
}

}  // namespace cifar_mpi::report
