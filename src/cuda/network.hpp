#pragma once

#include <atomic>
#include <functional>

#include "cifar_mpi/engine/backend.hpp"
#include "cuda/kernels.hpp"

namespace cifar_mpi::cuda {

class Device;

/// What planning a network needs of a device; tests have one of their own.
struct PlanContext {
  std::function<Buffer(std::size_t bytes)> allocate;  ///< zeroed
  std::function<void(NetKernels& kernels)> plan;      ///< chooses the libraries' kernels
  /// The pinned word that stands for a binding's stop request.
  std::function<const int*(const std::atomic<int>& request)> request_word;
};

/// That of a device and its ladder, which outlive all that is planned.
PlanContext plan_context(Device& device, Ladder& ladder);

/// The kernels for a network; `spec.precision` is fp32, tf32 or bf16. Throws Error{usage} when the batch is
/// below 1.
engine::TowerKernels plan_kernels(const engine::TowerSpec& spec, PlanContext context,
                                  ConvChoice choice = ConvChoice::automatic);

}  // namespace cifar_mpi::cuda
