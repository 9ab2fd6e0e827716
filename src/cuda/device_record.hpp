#pragma once

#include <cstdint>

namespace cifar_mpi::cuda {

/// One step's record as the device leaves it; the slots stand in an array of their own.
struct DeviceRecord {
  std::uint64_t step = 0;
  double cross_entropy = 0.0;
  double decay_term = 0.0;
  double correct = 0.0;
  double samples = 0.0;
  double stop_requests = 0.0;
  double trace_requests = 0.0;
  double gradient_norm = 0.0;
  std::uint64_t applied = 0;
};

}  // namespace cifar_mpi::cuda
