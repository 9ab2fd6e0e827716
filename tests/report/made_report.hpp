#pragma once

#include <cstdint>

#include "cifar_mpi/report/metrics.hpp"

namespace cifar_mpi::report::made {

/// A log line's numbers at a step of 400.
inline StepReport report_at(std::uint64_t step) {
  StepReport r;
  r.step = step;
  r.total_steps = 400;
  r.epoch = 1.5;
  r.cross_entropy = 2.0;
  r.decay_term = 0.416;
  r.learning_rate = 0.1;
  r.seconds_per_step = 0.25;
  r.images_per_second = 5012.34;
  return r;
}

}  // namespace cifar_mpi::report::made
