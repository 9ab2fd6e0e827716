#pragma once

#include <atomic>
#include <functional>

#include "cifar_mpi/engine/backend.hpp"
#include "cuda/kernels.hpp"

namespace cifar_mpi::cuda {

class Device;

/// The services of a device that planning a network needs; tests implement their own.
struct PlanContext {
  std::function<Buffer(std::size_t bytes)> allocate;  ///< zeroed
  std::function<void(NetKernels& kernels)> plan;      ///< chooses the libraries' kernels
  /// The pinned word for a binding's requests.
  std::function<const int*(const std::atomic<int>& request)> request_word;
};

/// The context of a device and its ladder, which must outlive all plans.
PlanContext plan_context(Device& device, Ladder& ladder);

/// The kernels for a network; `spec.precision` is fp32, tf32 or bf16. Throws Error{usage} when the batch is
/// below 1.
engine::TowerKernels plan_kernels(const engine::TowerSpec& spec, PlanContext context,
                                  ConvChoice choice = ConvChoice::automatic);

}  // namespace cifar_mpi::cuda
