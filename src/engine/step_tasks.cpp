#include "cifar_mpi/engine/step_tasks.hpp"

#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::engine {
namespace {

/// Both tasks that fill a network's input; `position` is the step counter or the cursor.
Task declare_input(std::string name, const DataView& data, const data::AugmentSpec& augment, int images,
                   std::size_t value_bytes, const void* x, const std::uint8_t* labels,
                   const std::uint64_t* position) {
  data::check_crop(augment);
  const auto batch = static_cast<std::size_t>(images);
  const std::size_t values = batch * static_cast<std::size_t>(augment.output().count());
  Task task;
  task.name = std::move(name);
  task.reads = {bytes_of(data.images, data.count * static_cast<std::size_t>(augment.source.count())),
                bytes_of(data.labels, data.count), bytes_of(position, 1)};
  task.writes = {{static_cast<const std::byte*>(x), values * value_bytes}, bytes_of(labels, batch)};
  task.cost.bytes = static_cast<double>(values * (1 + value_bytes) + 2 * batch);
  return task;
}

}  // namespace

Task declare_control(const TrainBinding& binding, const Bytes& request_word) {
  Task task;
  task.name = "control";
  task.writes = {bytes_of(binding.control, binding.control_layout.floats())};
  if (binding.own_requests() != nullptr) task.reads.push_back(request_word);
  if (const RankFacts* const facts = binding.own_facts()) {
    task.reads.push_back(bytes_of(facts, 1));
    task.writes.push_back(bytes_of(facts, 1));
  }
  return task;
}

Task declare_compute_time(const RankFacts* facts) {
  return {"compute time", {bytes_of(facts, 1)}, {bytes_of(facts, 1)}, {}, {}};
}

Task declare_train_input(const TrainBinding& binding, int batch, std::size_t value_bytes, const void* x,
                         const std::uint8_t* labels) {
  return declare_input("augment", binding.data, binding.augment, batch, value_bytes, x, labels, binding.step);
}

Task declare_evaluate_input(const EvaluateBinding& binding, int batch, std::size_t value_bytes, const void* x,
                            const std::uint8_t* labels) {
  Task task = declare_input("evaluation input", binding.data, binding.augment, batch, value_bytes, x, labels,
                            binding.cursor);
  task.writes.push_back(bytes_of(binding.cursor, 1));
  return task;
}

Task declare_update(const UpdateBinding& binding) {
  const std::size_t floats = binding.end - binding.begin;
  Task task;
  task.name = concat("update ", binding.begin, "..", binding.end);
  task.writes = {bytes_of(binding.params + binding.begin, floats),
                 bytes_of(binding.ema + binding.begin, floats)};
  for (const float* const state : binding.states) {
    if (state != nullptr) task.writes.push_back(bytes_of(state + binding.begin, floats));
  }
  task.reads = task.writes;
  task.writes.push_back(bytes_of(binding.decay_sum, 1));
  task.reads.push_back(bytes_of(binding.grads + binding.begin, floats));
  if (binding.moves != nullptr) task.reads.push_back(bytes_of(binding.moves + binding.begin, floats));
  task.reads.push_back(bytes_of(binding.control + ControlLayout::loss_sum, 1));
  task.reads.push_back(bytes_of(binding.step, 1));
  if (binding.divides_by_staleness)
    task.reads.push_back(bytes_of(binding.control + ControlLayout::staleness, 1));
  if (binding.gradient_norm != nullptr) task.reads.push_back(bytes_of(binding.gradient_norm, 1));
  return task;
}

Task declare_gather(const UpdateBinding& binding, const Matrix& matrix, const float* x) {
  const auto values = static_cast<std::size_t>(matrix.rest * matrix.out);
  Task task;
  task.name = concat("muon gather ", matrix.name);
  task.writes = {bytes_of(binding.states[0] + matrix.begin, matrix.floats), bytes_of(x, values)};
  task.reads = {task.writes.front(), bytes_of(binding.grads + matrix.begin, matrix.floats),
                bytes_of(matrix.places, values), bytes_of(binding.control + ControlLayout::loss_sum, 1)};
  if (binding.gradient_norm != nullptr) task.reads.push_back(bytes_of(binding.gradient_norm, 1));
  return task;
}

Task declare_polynomial(const Matrix& matrix, std::size_t n, const float* a, const float* aa) {
  return {concat("muon polynomial of ", matrix.name),
          {bytes_of(a, n * n), bytes_of(aa, n * n)},
          {bytes_of(aa, n * n)},
          {},
          {}};
}

Task declare_scatter(const UpdateBinding& binding, const Matrix& matrix, const float* x) {
  const auto values = static_cast<std::size_t>(matrix.rest * matrix.out);
  return {concat("muon scatter ", matrix.name),
          {bytes_of(x, values), bytes_of(matrix.places, values)},
          {bytes_of(binding.moves + matrix.begin, matrix.floats)},
          {},
          {}};
}

Task declare_normalize(const UpdateBinding& binding, const Matrix& matrix) {
  Task task;
  task.name = concat("muon normalize ", matrix.name);
  task.writes = {bytes_of(binding.params + matrix.begin, matrix.floats)};
  task.reads = {task.writes.front(), bytes_of(binding.step, 1),
                bytes_of(binding.control + ControlLayout::loss_sum, 1)};
  if (binding.gradient_norm != nullptr) task.reads.push_back(bytes_of(binding.gradient_norm, 1));
  return task;
}

Task declare_gradient_norm(const GradientNormBinding& binding) {
  return {"gradient norm", {bytes_of(binding.grads, binding.floats)}, {bytes_of(binding.norm, 1)}, {}, {}};
}

Task declare_running(const RunningBinding& binding, const ParamLayout& layout) {
  const std::size_t begin = layout.running_begin(), floats = layout.running_floats;
  Task task;
  task.name = "running statistics";
  task.writes = {bytes_of(binding.params + begin, floats), bytes_of(binding.ema + begin, floats)};
  task.reads = task.writes;
  task.reads.push_back(bytes_of(binding.control + ControlLayout::loss_sum, 1));
  task.reads.push_back(bytes_of(binding.control + binding.control_layout.statistics(), floats));
  task.reads.push_back(bytes_of(binding.step, 1));
  if (binding.gradient_norm != nullptr) task.reads.push_back(bytes_of(binding.gradient_norm, 1));
  return task;
}

Task declare_lookahead(const LookaheadBinding& binding) {
  Task task;
  task.name = "lookahead";
  for (const float* const block : {binding.params, binding.slow, binding.ema})
    task.writes.push_back(bytes_of(block, binding.floats));
  task.reads = task.writes;
  task.reads.push_back(bytes_of(binding.control + ControlLayout::loss_sum, 1));
  task.reads.push_back(bytes_of(binding.step, 1));
  if (binding.gradient_norm != nullptr) task.reads.push_back(bytes_of(binding.gradient_norm, 1));
  return task;
}

Task declare_advance(const AdvanceBinding& binding) {
  const ControlLayout& layout = binding.control_layout;
  const Bytes steps = bytes_of(binding.step, static_cast<std::size_t>(binding.steps));
  Task task;
  task.name = "advance";
  task.reads = {bytes_of(binding.control, layout.slot(layout.ranks)),
                bytes_of(binding.decay_sums.data(), binding.decay_sums.size()), steps};
  if (binding.gradient_norm != nullptr) task.reads.push_back(bytes_of(binding.gradient_norm, 1));
  task.writes = {steps};
  return task;
}

Task declare_sum(std::string name, const SumBinding& binding) {
  Task task;
  task.name = std::move(name);
  task.reads = {bytes_of(binding.a, binding.floats)};
  if (binding.b != nullptr) task.reads.push_back(bytes_of(binding.b, binding.floats));
  task.writes = {bytes_of(binding.dst, binding.floats)};
  return task;
}

Task declare_copy(std::string name, const std::vector<CopyBinding>& bindings) {
  Task task;
  task.name = std::move(name);
  for (const CopyBinding& copy : bindings) {
    task.reads.push_back({copy.src, copy.bytes});
    task.writes.push_back({copy.dst, copy.bytes});
  }
  return task;
}

Task declare_increment(std::string name, const std::uint64_t* counter) {
  return {std::move(name), {bytes_of(counter, 1)}, {bytes_of(counter, 1)}, {}, {}};
}

}  // namespace cifar_mpi::engine
