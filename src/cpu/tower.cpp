#include "cpu/tower.hpp"

#include <omp.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/assembly.hpp"
#include "cpu/augment.hpp"
#include "cpu/control.hpp"
#include "cpu/loss.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Task;

class DnnlTower final : public engine::Tower {
 public:
  explicit DnnlTower(const engine::TowerSpec& spec)
      : batch_(spec.batch),
        classes_(spec.net->classes),
        precision_(spec.precision),
        threads_(omp_get_max_threads()),
        plan_(plan_network(dnnl_, spec)) {
    for (const ParamFormat& param : plan_.params) append(layout_, param.master.get_size() / sizeof(float));
  }

  const engine::ParamLayout& layout() const override { return layout_; }

  std::string plan_text() const override {
    return concat(dnnl_version_text(), ", ", threads_, threads_ == 1 ? " thread, " : " threads, ",
                  engine::to_string(precision_), "\n", plan_.text);
  }

  void to_logical(std::size_t p, std::span<const float> physical, std::span<float> logical) const override {
    check_sizes(p, physical.size(), logical.size());
    reorder_now(dnnl_, plan_.params[p].master, physical.data(), plan_.params[p].logical, logical.data());
  }

  void from_logical(std::size_t p, std::span<const float> logical, std::span<float> physical) const override {
    check_sizes(p, physical.size(), logical.size());
    std::fill(physical.begin(), physical.end(), 0.0f);
    reorder_now(dnnl_, plan_.params[p].logical, logical.data(), plan_.params[p].master, physical.data());
  }

  std::vector<Task> train_tasks(const engine::TrainBinding& binding, engine::Arena& arena) override {
    Assembly assembly = assemble(Assembly::Purpose::train, arena);
    auto* const labels = arena.take_array<std::uint8_t>(static_cast<std::size_t>(batch_));
    std::vector<Task> tasks{plan_control(binding)};
    assembly.prepare(binding.params, tasks);
    tasks.push_back(plan_train_input(binding, batch_, precision_, assembly.input(), labels));
    assembly.forward(binding.params, tasks);
    tasks.push_back(plan_train_loss(binding, loss_shape(), assembly.logits(), labels, assembly.grad_logits(),
                                    classes_, precision_));
    assembly.backward(binding.grads, tasks);
    const bool last = binding.part + 1 == binding.parts;
    if (last && binding.facts != nullptr) tasks.push_back(plan_compute_time(binding.facts));
    return tasks;
  }

  std::vector<Task> evaluate_tasks(const engine::EvaluateBinding& binding, engine::Arena& arena) override {
    Assembly assembly = assemble(Assembly::Purpose::evaluate, arena);
    auto* const labels = arena.take_array<std::uint8_t>(static_cast<std::size_t>(batch_));
    std::vector<Task> tasks;
    assembly.prepare(binding.params, tasks);
    tasks.push_back(plan_evaluate_input(binding, batch_, precision_, assembly.input(), labels));
    assembly.forward(binding.params, tasks);
    tasks.push_back(plan_evaluate_loss(binding, loss_shape(), assembly.logits(), labels));
    return tasks;
  }

 private:
  Assembly assemble(Assembly::Purpose purpose, engine::Arena& arena) const {
    return {dnnl_, plan_, layout_, precision_, purpose, arena};
  }
  LossShape loss_shape() const { return {batch_, classes_, classes_}; }

  void check_sizes(std::size_t p, std::size_t physical, std::size_t logical) const {
    const std::size_t wanted = plan_.params.at(p).logical.get_size() / sizeof(float);
    if (physical == layout_.entries[p].floats && logical == wanted) return;
    throw std::logic_error(concat("cpu: parameter ", p, " has ", layout_.entries[p].floats,
                                  " floats in memory and ", wanted, " in logical order, called with ",
                                  physical, " and ", logical));
  }

  Dnnl dnnl_;
  int batch_;
  int classes_;
  engine::Precision precision_;
  int threads_;
  NetPlan plan_;
  engine::ParamLayout layout_;
};

}  // namespace

std::unique_ptr<engine::Tower> plan_tower(const engine::TowerSpec& spec) {
  if (spec.batch < 1) {
    throw Error(ErrorKind::usage,
                concat("a step needs at least 1 sample per rank, found a batch of ", spec.batch));
  }
  return std::make_unique<DnnlTower>(spec);
}

}  // namespace cifar_mpi::cpu
