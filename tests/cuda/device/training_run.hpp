#pragma once

#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/lower/tower.hpp"
#include "reference/reference.hpp"
#include "support/network_data.hpp"
#include "train/no_exchange.hpp"

/// One network with everything a training step, an evaluation and a few dozen steps need, on any backend.
namespace cifar_mpi::cuda::testing {

struct TrainingSpec {
  model::NetSpec net;
  int batch = 4;
  engine::Precision precision = engine::Precision::fp32;
  data::Augment augment = data::Augment::none;
  Extent source{};    ///< of the images; zero: as the network's input
  double ulps = 0.0;  ///< of every initial weight, at random, that it is off
  double rate = 0.05;
  optim::OptimizerSpec optimizer = {};
  double clip_norm = 0.0;
};

class TrainingRun : public test::NetworkData {
 public:
  TrainingRun(engine::Backend& device, TrainingSpec asked)
      : NetworkData(asked.net, asked.batch, asked.augment, asked.source),
        spec(std::move(asked)),
        backend(device),
        table(model::make_param_table(spec.net)),
        tower(std::make_unique<lower::Tower>(
            backend, engine::TowerSpec{&spec.net, &table, spec.batch, spec.precision})),
        arena([this](std::size_t bytes) { return backend.allocate(bytes); }),
        alone(std::make_unique<train::NoExchange>(backend), tower->layout(), {1 << 20}) {
    const std::size_t floats = tower->layout().floats;
    params_ = backend.allocate(floats * sizeof(float));
    ema_ = backend.allocate(floats * sizeof(float));
    for (const optim::StateRow& row : optim::state_rows(spec.optimizer.kind)) {
      if (row.of_optimizer) states_.push_back(backend.allocate(floats * sizeof(float)));
    }
    if (spec.clip_norm > 0.0) norm_ = backend.allocate(sizeof(double));
    alone.allocate(control.floats());
    const std::span<std::byte> block = std::as_writable_bytes(alone.block().all());
    reduced_ = Buffer(block.data(), block.size(), {});  // of `alone`
    step_ = backend.allocate(sizeof(std::uint64_t));
    facts_ = backend.allocate(sizeof(engine::RankFacts));
    decay_ = backend.allocate(sizeof(double));
    cursor_ = backend.allocate(sizeof(std::uint64_t));
    loss_ = backend.allocate(sizeof(float));
    predictions_ = backend.allocate(static_cast<std::size_t>(spec.batch));
    device_images_ = backend.allocate(images.size());
    device_labels_ = backend.allocate(labels.size());
    write(device_images_, images.data(), images.size());
    write(device_labels_, labels.data(), labels.size());
    std::vector<float> block(floats);
    test::draw_params(*tower, table, 1.0f, spec.ulps, block.data());
    write(params_, block.data(), block.size());
    write(ema_, block.data(), block.size());
  }

  engine::TrainBinding binding() {
    engine::TrainBinding b;
    b.params = params_.as<float>();
    b.control = reduced_.as<float>();
    b.grads = b.control + control.floats();
    b.control_layout = control;
    b.step = step_.as<std::uint64_t>();
    b.facts = facts_.as<engine::RankFacts>();
    b.data = view();
    b.order = order();
    b.augment = augment();
    b.seed = kSeed;
    b.global_batch = global_batch();
    b.requests = &requests;
    return b;
  }

  /// Control block, forward, loss and backward alone.
  engine::StepProgram gradient_program() {
    arena.rewind();
    return test::program_of("gradient", tower->train_tasks(binding(), arena));
  }

  engine::StepProgram step_program() {
    arena.rewind();
    comm::StepParts parts;
    parts.compute = tower->train_tasks(binding(), arena);
    engine::UpdateBinding update;
    update.params = params_.as<float>();
    update.grads = binding().grads;
    update.ema = ema_.as<float>();
    update.end = tower->layout().trained_floats;
    update.control = reduced_.as<float>();
    update.step = step_.as<std::uint64_t>();
    update.decay_sum = decay_.as<double>();
    update.schedule = schedule();
    update.optimizer = spec.optimizer;
    for (std::size_t s = 0; s < states_.size(); ++s) update.states[s] = states_[s].as<float>();
    if (spec.clip_norm > 0.0) {
      update.clip_norm = spec.clip_norm;
      update.gradient_norm = norm_.as<double>();
      parts.before_updates = backend.gradient_norm_task({update.grads, update.end, norm_.as<double>()});
    }
    parts.update.push_back(backend.update_task(update, table, tower->layout()));
    if (tower->layout().running_floats > 0) parts.finish.push_back(running_task());
    parts.finish.push_back(advance_task());
    engine::StepProgram program("train");
    alone.append(program, std::move(parts), {});
    program.finalize();
    return program;
  }

  /// The end of a step alone.
  engine::StepProgram record_program() {
    std::vector<engine::Task> tasks;
    tasks.push_back(advance_task());
    return test::program_of("record", std::move(tasks));
  }

  engine::StepProgram evaluate_program() {
    arena.rewind();
    engine::EvaluateBinding b{
        params_.as<float>(), view(), augment(), cursor_.as<std::uint64_t>(), predictions_.as<std::uint8_t>(),
        loss_.as<float>()};
    b.augment.kind = data::Augment::none;
    return test::program_of("evaluate", tower->evaluate_tasks(b, arena));
  }

  std::unique_ptr<engine::Runner> runner(engine::StepProgram program, engine::RunnerKind kind) {
    std::vector<engine::Bytes> regions = arena.regions();
    for (const Buffer* block :
         {&params_, &ema_, &reduced_, &step_, &facts_, &decay_, &cursor_, &loss_, &predictions_})
      regions.push_back({block->data(), block->size()});
    return backend.runner(std::move(program), kind, std::move(regions));
  }
  void run(engine::StepProgram program, engine::RunnerKind kind = engine::RunnerKind::serial, int times = 1) {
    const auto made = runner(std::move(program), kind);
    for (int i = 0; i < times; ++i) made->replay();
    made->finish();
  }

  /// Every byte of the arena becomes 0xFF, NaN in each type.
  void poison() {
    for (const engine::Bytes& region : arena.regions()) {
      const std::vector<std::byte> ones(region.size, std::byte{0xFF});
      backend.copy(const_cast<std::byte*>(region.begin), ones.data(), ones.size());
    }
  }

  template <class T>
  std::vector<T> read(const Buffer& buffer) const {
    std::vector<T> values(buffer.size() / sizeof(T));
    backend.copy(reinterpret_cast<std::byte*>(values.data()), buffer.data(), buffer.size());
    return values;
  }
  std::vector<float> params() const { return read<float>(params_); }
  std::vector<float> ema() const { return read<float>(ema_); }
  std::vector<float> reduced() const { return read<float>(reduced_); }
  std::vector<float> grads() const {
    const std::vector<float> all = reduced();
    return {all.begin() + static_cast<std::ptrdiff_t>(control.floats()), all.end()};
  }
  std::uint64_t steps() const { return read<std::uint64_t>(step_)[0]; }
  std::vector<std::uint8_t> predictions() const { return read<std::uint8_t>(predictions_); }
  float loss() const { return read<float>(loss_)[0]; }
  std::uint64_t cursor() const { return read<std::uint64_t>(cursor_)[0]; }
  void set_cursor(std::uint64_t value) { write(cursor_, &value, 1); }
  void set_params(const std::vector<float>& values) { write(params_, values.data(), values.size()); }
  void set_facts(const engine::RankFacts& facts) { write(facts_, &facts, 1); }

  reference::Params logical(const std::vector<float>& block) const {
    return test::logical_params(*tower, table, block.data());
  }
  /// The batch's statistics of running parameter `p` as the last step left them.
  reference::Array statistics(std::size_t p) const {
    return test::logical_param(*tower, table, p, reduced().data() + control.statistics(),
                               tower->layout().running_begin());
  }
  reference::LossAndGradients wanted(const reference::Rounding& round = reference::as_it_is) const {
    return reference::loss_and_gradients(spec.net, table, logical(params()), input(0), batch_labels(0),
                                         spec.batch, static_cast<double>(global_batch()), round);
  }
  optim::ScheduleSpec schedule() const {
    optim::ScheduleSpec schedule;
    schedule.base_rate = spec.rate;
    schedule.warmup_epochs = 2.0;
    schedule.samples = count();
    schedule.global_batch = global_batch();
    return schedule;
  }

  TrainingSpec spec;
  engine::Backend& backend;
  model::ParamTable table;
  std::unique_ptr<lower::Tower> tower;
  engine::Arena arena;
  comm::AllReduceUpdate alone;  ///< of one bucket
  engine::ControlLayout control{1, tower->layout().running_floats};
  std::vector<engine::StepRecord> records;
  std::atomic<int> requests{0};

 private:
  engine::DataView view() const {
    return {device_images_.as<const std::uint8_t>(), device_labels_.as<const std::uint8_t>(), count()};
  }
  engine::Task running_task() {
    engine::RunningBinding running;
    running.params = params_.as<float>();
    running.ema = ema_.as<float>();
    running.control = reduced_.as<float>();
    running.control_layout = control;
    running.step = step_.as<std::uint64_t>();
    if (spec.clip_norm > 0.0) running.gradient_norm = norm_.as<double>();
    return backend.running_task(running, table, tower->layout());
  }

  engine::Task advance_task() {
    engine::AdvanceBinding advance;
    advance.control = reduced_.as<float>();
    advance.control_layout = control;
    advance.global_batch = global_batch();
    advance.decay_sums = {decay_.as<const double>(), 1};
    advance.step = step_.as<std::uint64_t>();
    if (spec.clip_norm > 0.0) advance.gradient_norm = norm_.as<double>();
    records.resize(engine::kRecordRing);
    return backend.advance_task(advance, records);
  }

  template <class T>
  void write(const Buffer& to, const T* values, std::size_t n) {
    backend.copy(to.data(), reinterpret_cast<const std::byte*>(values), n * sizeof(T));
  }

  std::vector<Buffer> states_;
  Buffer norm_;
  Buffer params_, ema_, reduced_, step_, facts_, decay_, cursor_, loss_, predictions_;
  Buffer device_images_, device_labels_;
};

}  // namespace cifar_mpi::cuda::testing
