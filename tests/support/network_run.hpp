#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "support/network_data.hpp"

/// One network with everything for a training step and an evaluation, on any backend, and the same for the
/// reference.
namespace cifar_mpi::test {

struct RunSpec {
  model::NetSpec net;
  int batch = 4;
  engine::Precision precision = engine::Precision::fp32;
  int threads = 1;  ///< of a CPU
  engine::ConvMethod conv = engine::ConvMethod::automatic;
  data::Augment augment = data::Augment::none;
  Extent source{};            ///< of the images; zero: as the network's input
  bool draws = true;          ///< images and parameters; false: zeros, for a test that sets its own
  float weight_scale = 1.0f;  ///< of the random parameters, times 1/sqrt(inputs of the layer)
  double ulps = 0.0;          ///< random error of every initial weight
  // of whole steps
  double rate = 0.05;
  optim::OptimizerSpec optimizer = {};
  double clip_norm = 0.0;
};

class NetworkRun : public NetworkData {
 public:
  virtual ~NetworkRun() = default;

  NetworkRun(engine::Backend& device, RunSpec asked)
      : NetworkData(asked.net, asked.batch, asked.augment, asked.source, asked.draws),
        spec(std::move(asked)),
        backend(device),
        table(model::make_param_table(spec.net)),
        tower(std::make_unique<lower::Tower>(
            backend, engine::TowerSpec{&spec.net, &table, spec.batch, spec.precision, spec.conv})),
        arena([this](std::size_t bytes) { return backend.allocate(bytes); }),
        params_(backend.allocate(tower->layout().floats * sizeof(float))),
        reduced_(backend.allocate((control_layout.floats() + tower->layout().floats) * sizeof(float))) {
    write(images_, images);
    write(labels_, labels);
    if (!spec.draws) return;
    std::vector<float> block(tower->layout().floats);
    draw_params(*tower, table, spec.weight_scale, spec.ulps, block.data());
    set_params(block);
  }

  engine::TrainBinding train_binding() {
    engine::TrainBinding binding;
    binding.params = params_.as<float>();
    binding.control = reduced_.as<float>();
    binding.grads = binding.control + control_layout.floats();
    binding.control_layout = control_layout;
    binding.step = step_.as<std::uint64_t>();
    binding.data = view();
    binding.order = order();
    binding.augment = augment();
    binding.seed = kSeed;
    binding.global_batch = global_batch();
    return binding;
  }

  /// Control block, forward, loss and backward alone; `after` as TrainBinding has it.
  engine::StepProgram gradient_program(std::uint64_t after = 0) {
    arena.rewind();
    engine::TrainBinding binding = train_binding();
    binding.after = after;
    return program_of("gradient", tower->train_tasks(binding, arena));
  }
  engine::StepProgram evaluate_program() {
    arena.rewind();
    engine::EvaluateBinding binding{
        params_.as<float>(), view(), augment(), cursor_.as<std::uint64_t>(), predictions_.as<std::uint8_t>(),
        loss_.as<float>()};
    binding.augment.kind = data::Augment::none;
    return program_of("evaluate", tower->evaluate_tasks(binding, arena));
  }

  /// Of the floats [0, end).
  engine::UpdateBinding update_binding(float* ema, double* decay_sum, std::size_t end) {
    engine::UpdateBinding update;
    update.params = params_.as<float>();
    update.grads = train_binding().grads;
    update.ema = ema;
    update.end = end;
    update.control = reduced_.as<float>();
    update.step = step_.as<std::uint64_t>();
    update.decay_sum = decay_sum;
    return update;
  }

  std::unique_ptr<engine::Runner> runner(engine::StepProgram program, engine::RunnerKind kind) {
    return backend.runner(std::move(program), kind, regions());
  }
  void run(engine::StepProgram program, engine::RunnerKind kind = engine::RunnerKind::serial, int times = 1) {
    const auto made = runner(std::move(program), kind);
    for (int i = 0; i < times; ++i) made->replay();
    made->finish();
  }

  /// The results of a step and of an evaluation.
  std::tuple<std::vector<float>, std::vector<std::uint8_t>, float, std::uint64_t> results(
      engine::RunnerKind kind) {
    run(gradient_program(), kind);
    run(evaluate_program(), kind);
    return {reduced(), predictions(), loss(), cursor()};
  }

  /// Every byte of the arena becomes 0xFF, NaN in each type.
  void poison() {
    for (const engine::Bytes& region : arena.regions()) {
      const std::vector<std::byte> ones(region.size, std::byte{0xFF});
      backend.copy(const_cast<std::byte*>(region.begin), ones.data(), ones.size());
    }
  }

  std::vector<float> params() const { return read<float>(params_); }
  void set_params(const std::vector<float>& values) { write(params_, values); }
  /// The control block and the gradients.
  std::vector<float> reduced() const { return read<float>(reduced_); }
  void set_reduced(const std::vector<float>& values) { write(reduced_, values); }
  std::vector<float> grads() const {
    const std::vector<float> all = reduced();
    return {all.begin() + static_cast<std::ptrdiff_t>(control_layout.floats()), all.end()};
  }
  std::uint64_t steps() const { return read<std::uint64_t>(step_)[0]; }
  void set_step(std::uint64_t value) { write(step_, std::vector{value}); }
  std::vector<std::uint8_t> predictions() const { return read<std::uint8_t>(predictions_); }
  float loss() const { return read<float>(loss_)[0]; }
  std::uint64_t cursor() const { return read<std::uint64_t>(cursor_)[0]; }
  void set_cursor(std::uint64_t value) { write(cursor_, std::vector{value}); }

  /// By ParamTable index, as LossAndGradients has them.
  reference::Params gradients() const {
    reference::Params found = logical(grads());
    for (std::size_t p = 0; p < found.size(); ++p) {
      if (table[p].role == model::ParamRole::running) found[p] = statistics(p);
    }
    return found;
  }
  reference::Params logical(const std::vector<float>& block) const {
    return logical_params(*tower, table, block.data());
  }
  /// The batch's statistics of running parameter `p` after the last step.
  reference::Array statistics(std::size_t p) const {
    return logical_param(*tower, table, p, reduced().data() + control_layout.statistics(),
                         tower->layout().running_begin());
  }
  reference::LossAndGradients wanted(const reference::Rounding& round = reference::as_it_is) const {
    return reference::loss_and_gradients(spec.net, table, logical(params()), input(steps()),
                                         batch_labels(steps()), spec.batch,
                                         static_cast<double>(global_batch()), round);
  }

  RunSpec spec;
  engine::Backend& backend;
  model::ParamTable table;
  std::unique_ptr<lower::Tower> tower;
  engine::Arena arena;
  engine::ControlLayout control_layout{1, tower->layout().running_floats};

 protected:
  template <class T>
  std::vector<T> read(const Buffer& buffer) const {
    std::vector<T> values(buffer.size() / sizeof(T));
    backend.copy(values.data(), buffer.data(), buffer.size());
    return values;
  }
  template <class T>
  void write(const Buffer& to, const std::vector<T>& values) {
    backend.copy(to.data(), values.data(), values.size() * sizeof(T));
  }
  /// All memory that a task of a program may touch.
  virtual std::vector<engine::Bytes> regions() const {
    std::vector<engine::Bytes> all = arena.regions();
    for (const Buffer* block :
         {&params_, &reduced_, &step_, &cursor_, &loss_, &predictions_, &images_, &labels_}) {
      all.push_back({block->data(), block->size()});
    }
    return all;
  }

  Buffer params_, reduced_;
  Buffer step_{backend.allocate(sizeof(std::uint64_t))}, cursor_{backend.allocate(sizeof(std::uint64_t))},
      loss_{backend.allocate(sizeof(float))},
      predictions_{backend.allocate(static_cast<std::size_t>(spec.batch))},
      images_{backend.allocate(images.size())}, labels_{backend.allocate(labels.size())};

 private:
  engine::DataView view() const {
    return {images_.as<const std::uint8_t>(), labels_.as<const std::uint8_t>(), count()};
  }
};

/// How much more rounding moves each gradient than relative_tolerance assumes. It assumes that a layer passes a relative
/// error on at its size. The error grows if terms cancel or a softmax reads large logits. Measured with references in which
/// each value is off by one rounding of fp32, up or down at random.
inline std::vector<double> error_growths(const NetworkRun& run, const reference::LossAndGradients& exact) {
  constexpr std::uint64_t kDraws = 10;
  constexpr double kEps = 0x1.0p-24;
  std::vector<double> squares(run.table.size()), growths;
  for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
    std::uint32_t array = 0;
    const auto rounded = run.wanted([&](reference::Array values) {
      ++array;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool up = (random4(draw, RandomPurpose::synthetic, i, array)[0] & 1) != 0;
        values[i] *= 1.0 + (up ? kEps : -kEps);
      }
      return values;
    });
    for (std::size_t p = 0; p < squares.size(); ++p) {
      if (exact.grads[p].empty()) continue;
      const double distance = reference::gradient_distance(run.table, rounded.grads[p], exact.grads, p);
      squares[p] += distance * distance / kDraws;
    }
  }
  const double assumed = kEps * reference::layers_passed(run.spec.net);
  for (const double square : squares) growths.push_back(std::max(1.0, std::sqrt(square) / assumed));
  return growths;
}

/// `tolerance` holds for layers that pass relative errors on at their size; in fp32 it grows where they do not.
inline void expect_reference_gradients(const NetworkRun& run, const reference::LossAndGradients& wanted,
                                       double tolerance) {
  // Of 2588 gradients of 300 random networks, the growth is above 2 for 13, and above 10 for none.
  constexpr double kMostGrowth = 20.0;
  const model::NetSpec& net = run.spec.net;
  const std::string name = concat(net.name, ", ", to_string(run.spec.precision), ", batch ", run.spec.batch);
  const std::vector<float> reduced = run.reduced();
  EXPECT_NEAR(static_cast<double>(reduced[engine::ControlLayout::loss_sum]), wanted.loss_sum,
              tolerance * wanted.samples * std::log(net.classes))
      << name;
  EXPECT_EQ(static_cast<double>(reduced[engine::ControlLayout::samples]), run.spec.batch) << name;
  const reference::Params found = run.gradients();
  std::vector<double> growths;
  for (std::size_t p = 0; p < found.size(); ++p) {
    if (run.table[p].role == model::ParamRole::frozen) continue;
    const double distance = reference::gradient_distance(run.table, found[p], wanted.grads, p);
    if (distance > tolerance && run.spec.precision == engine::Precision::fp32 && growths.empty())
      growths = error_growths(run, wanted);
    const double growth = growths.empty() ? 1.0 : growths[p];
    EXPECT_LT(growth, kMostGrowth) << name
                                   << ": rounding moves it too much for a check: " << run.table[p].name;
    EXPECT_LE(distance, growth * tolerance) << name << ": " << run.table[p].name;
  }
}

/// Lets two thirds of the parameters train in the first `steps` steps only.
inline model::NetSpec freezing_after(std::uint64_t steps, model::NetSpec net, std::uint64_t seed) {
  for (model::Operation& operation : net.operations) {
    for (model::Param& param : operation.params) param.steps = ++seed % 3 == 0 ? 0 : steps;
  }
  return net;
}

struct LeftOut {
  std::size_t gradients = 0;  ///< of parameters
  bool tasks = false;
};
/// Expects that the step after `steps` writes no gradient of parameters that train in so many steps only, and that all
/// other gradients have the bits of the first step's.
inline LeftOut expect_frozen_left_out(NetworkRun& run, std::uint64_t steps) {
  constexpr float kMark = 77.0f;
  LeftOut left_out;
  engine::StepProgram early = run.gradient_program(steps - 1);
  const std::size_t tasks = early.tasks().size();
  run.run(std::move(early));
  const reference::Params wanted = run.gradients();
  run.set_reduced(std::vector<float>(run.reduced().size(), kMark));
  engine::StepProgram late = run.gradient_program(steps);
  EXPECT_LE(late.tasks().size(), tasks);
  left_out.tasks = late.tasks().size() < tasks;
  run.run(std::move(late));
  const reference::Params found = run.gradients();
  for (std::size_t p = 0; p < found.size(); ++p) {
    const model::Param& param = run.table[p];
    if (param.role == model::ParamRole::frozen) continue;
    const bool leaves = param.role == model::ParamRole::trained && param.steps > 0;
    left_out.gradients += leaves ? 1 : 0;
    EXPECT_EQ(found[p], leaves ? reference::Array(found[p].size(), kMark) : wanted[p]) << param.name;
  }
  return left_out;
}

}  // namespace cifar_mpi::test
