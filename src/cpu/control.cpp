#include "cpu/control.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/engine/step_tasks.hpp"

namespace cifar_mpi::cpu {

using engine::ControlLayout;

engine::Task plan_control(const engine::TrainBinding& binding) {
  const std::size_t floats = binding.control_layout.floats();
  const auto* const requests = binding.own_requests();
  engine::Task task = engine::declare_control(binding, engine::bytes_of(requests, 1));
  task.start = [control = binding.control, floats, requests, facts = binding.own_facts(),
                slot = binding.control_layout.slot(binding.rank)](engine::Lane&) {
    std::fill(control, control + floats, 0.0f);
    const int asked = requests != nullptr ? requests->load(std::memory_order_relaxed) : 0;
    control[ControlLayout::stop] = (asked & engine::kStopRequest) != 0 ? 1.0f : 0.0f;
    control[ControlLayout::trace] = (asked & engine::kTraceRequest) != 0 ? 1.0f : 0.0f;
    control[ControlLayout::save] = (asked & engine::kSaveRequest) != 0 ? 1.0f : 0.0f;
    if (facts == nullptr) return;
    control[slot + ControlLayout::compute_ms] = facts->compute_ms;
    for (std::size_t piece = 0; piece < 4; ++piece) {
      control[slot + ControlLayout::hash_pieces + piece] =
          static_cast<float>((facts->param_hash >> (16 * piece)) & 0xFFFFu);
    }
    facts->started_s = steady_seconds();
  };
  return task;
}

engine::Task plan_compute_time(engine::RankFacts* facts) {
  engine::Task task = engine::declare_compute_time(facts);
  task.start = [facts](engine::Lane&) {
    facts->compute_ms = static_cast<float>(1e3 * (steady_seconds() - facts->started_s));
  };
  return task;
}

engine::Task plan_advance(const engine::AdvanceBinding& binding, std::vector<engine::StepRecord>& records) {
  const std::size_t begin = binding.control_layout.slot(0),
                    end = binding.control_layout.slot(binding.control_layout.ranks);
  records.resize(engine::kRecordRing);
  for (engine::StepRecord& record : records) record.slots.resize(end - begin);

  const auto steps = static_cast<std::size_t>(binding.steps);
  engine::Task task = engine::declare_advance(binding);
  task.reads.push_back(engine::bytes_of(records.data(), records.size()));
  task.writes.push_back(engine::bytes_of(records.data(), records.size()));
  for (engine::StepRecord& record : records) {
    task.writes.push_back(engine::bytes_of(record.slots.data(), record.slots.size()));
  }
  task.start = [binding, begin, end, steps, ring = records.data()](engine::Lane&) {
    const float* control = binding.control;
    const std::uint64_t last = binding.step[steps - 1];
    engine::StepRecord& record = ring[engine::record_place(last, steps)];
    record.step = last;
    record.cross_entropy =
        static_cast<double>(control[ControlLayout::loss_sum]) / static_cast<double>(binding.global_batch);
    record.decay_term = 0.0;
    for (const double sum : binding.decay_sums) record.decay_term += sum;
    record.correct = control[ControlLayout::correct];
    record.samples = control[ControlLayout::samples];
    record.stop_requests = control[ControlLayout::stop];
    record.trace_requests = control[ControlLayout::trace];
    record.save_requests = control[ControlLayout::save];
    record.gradient_norm = binding.gradient_norm != nullptr ? *binding.gradient_norm : 0.0;
    record.applied = std::isfinite(control[ControlLayout::loss_sum]) && std::isfinite(record.decay_term) &&
                     std::isfinite(record.gradient_norm);
    std::copy(control + begin, control + end, record.slots.begin());
    if (!record.applied) return;
    for (std::size_t i = 0; i < steps; ++i) binding.step[i] += steps;
  };
  return task;
}

}  // namespace cifar_mpi::cpu
