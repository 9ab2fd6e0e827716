#include "cuda/tower.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "cuda/assembly.hpp"
#include "cuda/planner.hpp"
#include "cuda/step_tasks.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::Task;

class CudaTower final : public engine::Tower {
 public:
  CudaTower(Device& device, const engine::TowerSpec& spec, ConvChoice choice)
      : device_(device),
        plan_(plan_network(spec)),
        kernels_(plan_, choice),
        counters_(device.allocate(counter_words(plan_) * sizeof(unsigned))) {
    if (const std::size_t bytes = kernels_.library_trial_bytes(); bytes > 0) {
      kernels_.plan_library(TrialMemory(device, bytes, true).trial());
    }
    if (const std::size_t bytes = kernels_.product_trial_bytes(); bytes > 0) {
      kernels_.plan_products(TrialMemory(device, bytes, false).trial());
    }
  }

  const engine::ParamLayout& layout() const override { return plan_.layout; }

  std::string plan_text() const override {
    return concat(library_versions(), ", ", engine::to_string(plan_.precision), "\n", kernels_.text());
  }

  void to_logical(std::size_t p, std::span<const float> physical, std::span<float> logical) const override {
    check_sizes(p, physical.size(), logical.size());
    copy_to_logical(physical, logical);
  }

  void from_logical(std::size_t p, std::span<const float> logical, std::span<float> physical) const override {
    check_sizes(p, physical.size(), logical.size());
    copy_from_logical(logical, physical);
  }

  std::vector<Task> train_tasks(const engine::TrainBinding& binding, engine::Arena& arena) override {
    const int* const word =
        binding.stop_request != nullptr ? device_.link().stop_word(binding.stop_request) : nullptr;
    return cuda::train_tasks(plan_, kernels_, binding, arena, word, counters_.as<unsigned>());
  }

  std::vector<Task> evaluate_tasks(const engine::EvaluateBinding& binding, engine::Arena& arena) override {
    return cuda::evaluate_tasks(plan_, kernels_, binding, arena, counters_.as<unsigned>());
  }

 private:
  void check_sizes(std::size_t p, std::size_t physical, std::size_t logical) const {
    if (physical == plan_.layout.entries.at(p).floats && logical <= physical) return;
    throw std::logic_error(concat("cuda: parameter ", p, " has ", plan_.layout.entries[p].floats,
                                  " floats in memory, called with ", physical, " and ", logical));
  }

  Device& device_;
  NetPlan plan_;
  NetKernels kernels_;
  Buffer counters_;
};

LossPlace place_loss(const NetPlan& plan, const Assembly& assembly, const std::uint8_t* labels) {
  return {plan.batch, plan.classes, assembly.logits(), assembly.logit_type(), labels};
}

}  // namespace

std::vector<Task> train_tasks(const NetPlan& plan, const NetKernels& kernels,
                              const engine::TrainBinding& binding, engine::Arena& arena, const int* stop_word,
                              unsigned* counters) {
  const Assembly assembly(plan, kernels, Assembly::Purpose::train, arena, counters);
  const ValueType type = value_type(plan.precision);
  auto* const labels = arena.take_array<std::uint8_t>(static_cast<std::size_t>(plan.batch));
  std::vector<Task> tasks{plan_control(binding, stop_word)};
  assembly.prepare(binding.params, tasks);
  tasks.push_back(plan_train_input(binding, plan.batch, type, assembly.input(), labels));
  assembly.forward(binding.params, tasks);
  tasks.push_back(plan_train_loss(binding, place_loss(plan, assembly, labels), assembly.grad_logits(), type));
  assembly.backward(binding.params, binding.grads, tasks);
  const bool last = binding.part + 1 == binding.parts;
  if (last && binding.facts != nullptr) tasks.push_back(plan_compute_time(binding.facts));
  return tasks;
}

std::vector<Task> evaluate_tasks(const NetPlan& plan, const NetKernels& kernels,
                                 const engine::EvaluateBinding& binding, engine::Arena& arena,
                                 unsigned* counters) {
  const Assembly assembly(plan, kernels, Assembly::Purpose::evaluate, arena, counters);
  auto* const labels = arena.take_array<std::uint8_t>(static_cast<std::size_t>(plan.batch));
  std::vector<Task> tasks;
  assembly.prepare(binding.params, tasks);
  tasks.push_back(
      plan_evaluate_input(binding, plan.batch, value_type(plan.precision), assembly.input(), labels));
  assembly.forward(binding.params, tasks);
  tasks.push_back(plan_evaluate_loss(binding, place_loss(plan, assembly, labels)));
  return tasks;
}

void copy_to_logical(std::span<const float> physical, std::span<float> logical) {
  std::copy_n(physical.begin(), logical.size(), logical.begin());
}

void copy_from_logical(std::span<const float> logical, std::span<float> physical) {
  const auto end = std::copy(logical.begin(), logical.end(), physical.begin());
  std::fill(end, physical.end(), 0.0f);
}

std::unique_ptr<engine::Tower> plan_tower(Device& device, const engine::TowerSpec& spec, ConvChoice choice) {
  return std::make_unique<CudaTower>(device, spec, choice);
}

}  // namespace cifar_mpi::cuda
