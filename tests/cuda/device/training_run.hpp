#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/step/no_exchange.hpp"
#include "support/network_run.hpp"

/// A network with everything else that whole steps need (the update, its state and the end of the step), on any backend.
namespace cifar_mpi::cuda::testing {

using TrainingSpec = test::RunSpec;

class TrainingRun : public test::NetworkRun {
 public:
  TrainingRun(engine::Backend& device, TrainingSpec asked)
      : NetworkRun(device, std::move(asked)),
        alone(std::make_unique<step::NoExchange>(backend), tower->layout(), {1 << 20}) {
    const std::size_t bytes = tower->layout().floats * sizeof(float);
    ema_ = backend.allocate(bytes);
    write(ema_, params());
    for (const optim::StateRow& row : optim::state_rows(spec.optimizer.kind)) {
      if (row.of_optimizer) states_.push_back(backend.allocate(bytes));
    }
    if (spec.clip_norm > 0.0) norm_ = backend.allocate(sizeof(double));
    alone.allocate(control_layout.floats());
    const std::span<std::byte> block = std::as_writable_bytes(alone.block().all());
    reduced_ = Buffer(block.data(), block.size(), {});  // of `alone`
  }

  engine::StepProgram step_program() {
    arena.rewind();
    engine::TrainBinding binding = train_binding();
    binding.facts = facts_.as<engine::RankFacts>();
    binding.requests = &requests;
    comm::StepParts parts;
    parts.compute = tower->train_tasks(binding, arena);
    engine::UpdateBinding update =
        update_binding(ema_.as<float>(), decay_.as<double>(), tower->layout().trained_floats);
    update.schedule = schedule();
    update.optimizer = spec.optimizer;
    for (std::size_t s = 0; s < states_.size(); ++s) update.states[s] = states_[s].as<float>();
    if (spec.clip_norm > 0.0) {
      update.clip_norm = spec.clip_norm;
      update.gradient_norm = norm_.as<double>();
      parts.before_updates = backend.gradient_norm_task({update.grads, update.end, norm_.as<double>()});
    }
    parts.update.push_back({backend.update_task(update, table, tower->layout())});
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

  void set_facts(const engine::RankFacts& facts) { write(facts_, std::vector{facts}); }
  std::vector<float> ema() const { return read<float>(ema_); }
  optim::ScheduleSpec schedule() const {
    optim::ScheduleSpec schedule;
    schedule.base_rate = spec.rate;
    schedule.warmup_epochs = 2.0;
    schedule.samples = count();
    schedule.global_batch = global_batch();
    return schedule;
  }

  std::atomic<int> requests{0};
  comm::AllReduceUpdate alone;  ///< of one bucket
  std::vector<engine::StepRecord> records;

 protected:
  std::vector<engine::Bytes> regions() const override {
    std::vector<engine::Bytes> all = NetworkRun::regions();
    for (const Buffer* block : {&ema_, &decay_, &facts_}) all.push_back({block->data(), block->size()});
    return all;
  }

 private:
  engine::Task running_task() {
    engine::RunningBinding running;
    running.params = params_.as<float>();
    running.ema = ema_.as<float>();
    running.control = reduced_.as<float>();
    running.control_layout = control_layout;
    running.step = step_.as<std::uint64_t>();
    if (spec.clip_norm > 0.0) running.gradient_norm = norm_.as<double>();
    return backend.running_task(running, table, tower->layout());
  }

  engine::Task advance_task() {
    engine::AdvanceBinding advance;
    advance.control = reduced_.as<float>();
    advance.control_layout = control_layout;
    advance.global_batch = global_batch();
    advance.decay_sums = {decay_.as<const double>(), 1};
    advance.step = step_.as<std::uint64_t>();
    if (spec.clip_norm > 0.0) advance.gradient_norm = norm_.as<double>();
    records.resize(engine::kRecordRing);
    return backend.advance_task(advance, records);
  }

  std::vector<Buffer> states_;
  Buffer norm_, ema_, decay_{backend.allocate(sizeof(double))},
      facts_{backend.allocate(sizeof(engine::RankFacts))};
};

}  // namespace cifar_mpi::cuda::testing
