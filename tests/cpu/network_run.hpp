#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/lower/tower.hpp"
#include "reference/reference.hpp"
#include "support/network_data.hpp"

/// One network with everything a training step and an evaluation need, and the reference's view of the same.
namespace cifar_mpi::cpu {

struct RunSpec {
  model::NetSpec net;
  int batch = 4;
  engine::Precision precision = engine::Precision::fp32;
  int threads = 1;
  engine::ConvMethod conv = engine::ConvMethod::automatic;
  float weight_scale = 1.0f;  ///< of the random parameters, times 1/sqrt(inputs of the layer)
};

using reference::relative_distance;
using reference::relative_tolerance;

class NetworkRun : public test::NetworkData {
 public:
  explicit NetworkRun(RunSpec asked)
      : NetworkData(asked.net, asked.batch),
        spec(std::move(asked)),
        table(model::make_param_table(spec.net)),
        backend(make_backend({spec.threads, false})),
        tower(std::make_unique<lower::Tower>(
            *backend, engine::TowerSpec{&spec.net, &table, spec.batch, spec.precision, spec.conv})),
        arena([this](std::size_t bytes) { return backend->allocate(bytes); }),
        params(backend->allocate(tower->layout().floats * sizeof(float))),
        reduced(backend->allocate((control_layout.floats() + tower->layout().floats) * sizeof(float))) {
    test::draw_params(*tower, table, spec.weight_scale, 0.0, params.as<float>());
  }

  float* control() const { return reduced.as<float>(); }
  float* grads() const { return control() + control_layout.floats(); }

  engine::TrainBinding train_binding() {
    engine::TrainBinding binding;
    binding.params = params.as<float>();
    binding.grads = grads();
    binding.control = control();
    binding.control_layout = control_layout;
    binding.step = &step;
    binding.data = view();
    binding.order = order();
    binding.augment = augment();
    binding.global_batch = global_batch();
    return binding;
  }

  engine::EvaluateBinding evaluate_binding() {
    predictions.resize(static_cast<std::size_t>(spec.batch));
    return {params.as<float>(), view(), augment(), &cursor, predictions.data(), &loss_sum};
  }

  engine::StepProgram train_program() {
    arena.rewind();
    return test::program_of("train", tower->train_tasks(train_binding(), arena));
  }
  engine::StepProgram evaluate_program() {
    arena.rewind();
    return test::program_of("evaluate", tower->evaluate_tasks(evaluate_binding(), arena));
  }

  /// Everything a task of a program may touch.
  std::vector<engine::Bytes> regions() const {
    std::vector<engine::Bytes> all = arena.regions();
    all.push_back({params.data(), params.size()});
    all.push_back({reduced.data(), reduced.size()});
    for (const std::vector<std::uint8_t>* bytes : {&images, &labels, &predictions}) {
      all.push_back(engine::bytes_of(bytes->data(), bytes->size()));
    }
    for (const std::uint64_t* counter : {&step, &cursor}) all.push_back(engine::bytes_of(counter, 1));
    all.push_back(engine::bytes_of(&loss_sum, 1));
    return all;
  }

  void run(engine::StepProgram program, engine::RunnerKind kind = engine::RunnerKind::serial) {
    const auto runner = backend->runner(std::move(program), kind, regions());
    runner->replay();
    runner->finish();
  }

  reference::Params logical(const float* block) const { return test::logical_params(*tower, table, block); }
  /// The batch's statistics of running parameter `p` as the last step left them.
  reference::Array statistics(std::size_t p) const {
    return test::logical_param(*tower, table, p, control() + control_layout.statistics(),
                               tower->layout().running_begin());
  }
  reference::LossAndGradients wanted(const reference::Rounding& round = reference::as_it_is) const {
    return reference::loss_and_gradients(spec.net, table, logical(params.as<float>()), input(step),
                                         batch_labels(step), spec.batch, static_cast<double>(global_batch()),
                                         round);
  }

  RunSpec spec;
  model::ParamTable table;
  std::unique_ptr<engine::Backend> backend;
  std::unique_ptr<lower::Tower> tower;
  engine::Arena arena;
  engine::ControlLayout control_layout{1, tower->layout().running_floats};
  Buffer params;
  Buffer reduced;
  std::vector<std::uint8_t> predictions;
  std::uint64_t step = 3;
  std::uint64_t cursor = 0;
  float loss_sum = 0.0f;

 private:
  engine::DataView view() const { return {images.data(), labels.data(), count()}; }
};

}  // namespace cifar_mpi::cpu
