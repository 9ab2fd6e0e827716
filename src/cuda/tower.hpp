#pragma once

#include <memory>

#include "cifar_mpi/engine/backend.hpp"
#include "cuda/device.hpp"
#include "cuda/kernels.hpp"

namespace cifar_mpi::cuda {

/// Plans a network (see planner.hpp) and its kernels (see kernels.hpp) on a device, which outlives the tower.
/// `spec.precision` is fp32, tf32 or bf16.
std::unique_ptr<engine::Tower> plan_tower(Device& device, const engine::TowerSpec& spec,
                                          ConvChoice choice = ConvChoice::automatic);

/// The tasks of a training step, an evaluation; need no device. What they point to outlives them. `stop_word`
/// stands for the binding's stop request; `counters` has counter_words(plan) words.
std::vector<engine::Task> train_tasks(const NetPlan& plan, const NetKernels& kernels,
                                      const engine::TrainBinding& binding, engine::Arena& arena,
                                      const int* stop_word, unsigned* counters);
std::vector<engine::Task> evaluate_tasks(const NetPlan& plan, const NetKernels& kernels,
                                         const engine::EvaluateBinding& binding, engine::Arena& arena,
                                         unsigned* counters);

/// The start of `physical` and the whole of `logical` are the same values; see Tower.
void copy_to_logical(std::span<const float> physical, std::span<float> logical);
void copy_from_logical(std::span<const float> logical, std::span<float> physical);

}  // namespace cifar_mpi::cuda
