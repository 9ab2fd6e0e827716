#include <fmt/core.h>

#include <algorithm>

#include "selfcheck/device_checks.hpp"

namespace cifar_mpi::selfcheck {

std::vector<SlowTask> slow_tasks(const engine::StepProgram& program, const std::vector<double>& seconds,
                                 const engine::RooflineLimits& limits) {
  constexpr double kFloors = 20.0, kLeast_s = 100e-6;
  std::vector<SlowTask> slow;
  for (std::size_t t = 0; t < seconds.size(); ++t) {
    const engine::Task& task = program.tasks()[t];
    if (task.kind == engine::TaskKind::collective) continue;
    const double floor_s = engine::floor_seconds(task.cost.flops, engine::bytes_moved(task), limits);
    if (seconds[t] > kLeast_s && seconds[t] > kFloors * floor_s)
      slow.push_back({task.name, seconds[t], floor_s});
  }
  std::ranges::sort(slow, std::ranges::greater(), &SlowTask::seconds);
  return slow;
}

CheckRow check_speed(CheckStep& device, const engine::RooflineLimits& limits, int images) {
  constexpr int kReplays = 5;
  device.fill(1, images);
  device.rewind();
  const auto runner = device.runner(engine::RunnerKind::serial, CheckStep::Input::distorted);
  std::vector<double> least;
  for (int replay = 0; replay <= kReplays; ++replay) {
    const std::vector<double> before = runner->task_seconds();
    runner->replay();
    runner->finish();
    std::vector<double> took = runner->task_seconds();
    for (std::size_t t = 0; t < took.size(); ++t) took[t] -= before[t];
    if (replay < 2) least = took;  // the first replay may load kernels
    for (std::size_t t = 0; t < took.size(); ++t) least[t] = std::min(least[t], took[t]);
  }
  std::string text;
  for (const SlowTask& slow : slow_tasks(runner->program(), least, limits)) {
    text += fmt::format("{}{} takes {:.3g} ms, {:.0f} times what it should", text.empty() ? "" : "; ",
                        slow.task, 1e3 * slow.seconds, slow.seconds / slow.floor_s);
  }
  if (text.empty())
    return {{}, Outcome::good, "every task takes at most 20 times its roofline time, or 100 us"};
  return {{}, Outcome::slow, text};
}

}  // namespace cifar_mpi::selfcheck
