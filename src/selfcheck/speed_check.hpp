#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/engine/roofline.hpp"
#include "selfcheck/device_checks.hpp"

/// Whether a device computes a step about as fast as its limits let it.
namespace cifar_mpi::selfcheck {

struct SlowTask {
  std::string task;
  double seconds = 0.0;
  double floor_s = 0.0;
};

/// The tasks that took more than 20 times their roofline time and over 100 µs, the longest first. `seconds`
/// is by task; those of collectives are left out, because other limits hold them up. A good kernel that is
/// small or bound by instructions takes up to some 10 times its roofline time; a kernel that a library should
/// have replaced takes 40 times and more.
std::vector<SlowTask> slow_tasks(const engine::StepProgram& program, const std::vector<double>& seconds,
                                 const engine::RooflineLimits& limits);

/// Times the tasks of a step one by one, of five replays the shortest time of each, and names the slow ones. Never a
/// fault: a slow device computes what a fast one does.
CheckRow check_speed(CheckStep& device, const engine::RooflineLimits& limits, int images);

}  // namespace cifar_mpi::selfcheck
