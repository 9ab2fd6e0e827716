#include "cuda/step_tasks.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "cuda/augment.hpp"
#include "cuda/check.hpp"
#include "cuda/count.hpp"
#include "cuda/lane.hpp"
#include "cuda/loss.hpp"
#include "cuda/sum.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::bytes_of;
using engine::ControlLayout;
using engine::Lane;
using engine::Task;

/// loss, correct and samples: what the loss task adds to.
constexpr std::size_t kFigures = 3;
static_assert(ControlLayout::loss_sum == 0 && ControlLayout::correct == 1 && ControlLayout::samples == 2);

InputPlace place_input(const engine::DataView& data, const data::AugmentSpec& spec, int batch, ValueType type,
                       std::byte* x, std::uint8_t* labels) {
  data::check_crop(spec);
  return {spec, data.images, data.labels, data.count, batch, type, x, labels};
}

Task input_task(const char* name, const InputPlace& place) {
  const auto batch = static_cast<std::size_t>(place.batch);
  const auto values = batch * static_cast<std::size_t>(place.spec.output().count());
  Task task;
  task.name = name;
  task.reads = {bytes_of(place.images, place.count * static_cast<std::size_t>(place.spec.source.count())),
                bytes_of(place.labels, place.count)};
  task.writes = {{static_cast<const std::byte*>(place.x), values * bytes_per(place.type)},
                 bytes_of(place.batch_labels, batch)};
  task.cost.bytes = static_cast<double>(values * (1 + bytes_per(place.type)) + 2 * batch);
  return task;
}

std::size_t logits_of(const LossInput& input) {
  return static_cast<std::size_t>(input.batch) * static_cast<std::size_t>(input.columns);
}

Task loss_task(const char* name, const LossInput& input) {
  Task task;
  task.name = name;
  task.reads = {{static_cast<const std::byte*>(input.logits), logits_of(input) * bytes_per(input.logit_type)},
                bytes_of(input.labels, static_cast<std::size_t>(input.batch))};
  task.writes = {bytes_of(input.partials, loss_partials(input.batch)), bytes_of(input.counter, 1)};
  return task;
}

/// It writes `dst` from `a`, and from `b` unless it is null.
Task elementwise_task(std::string name, const float* dst, const float* a, const float* b, std::size_t n) {
  Task task;
  task.name = std::move(name);
  task.reads = {bytes_of(a, n)};
  if (b != nullptr) task.reads.push_back(bytes_of(b, n));
  task.writes = {bytes_of(dst, n)};
  return task;
}

/// The parameters of floats [begin, end), or the parts of them that lie there, as many to a launch as fit.
std::vector<Segments> segments_of(std::size_t begin, std::size_t end, const model::ParamTable& params,
                                  const engine::ParamLayout& layout) {
  if (layout.entries.size() != params.size()) {
    throw std::logic_error(concat("update: ", params.size(), " parameters, but ", layout.entries.size(),
                                  " entries in the layout"));
  }
  std::vector<Segments> launches;
  std::size_t covered = begin;
  for (std::size_t p = 0; p < params.size(); ++p) {
    const std::size_t first = std::max(layout.entries[p].offset, begin);
    const std::size_t last = std::min(layout.entries[p].offset + layout.entries[p].floats, end);
    if (first >= last) continue;
    if (first != covered || first % 4 != 0 || last % 4 != 0) {
      throw std::logic_error(concat("update: [", begin, ", ", end,
                                    ") is not made of whole lines of parameters; ", params[p].name, " has [",
                                    first, ", ", last, ") of it"));
    }
    covered = last;
    if (launches.empty() || launches.back().count == Segments::kMost) launches.emplace_back();
    Segments& segments = launches.back();
    segments.items[segments.count++] = {first, last, params[p].weight_decay, params[p].rate_factor};
  }
  if (covered != end) {
    throw std::logic_error(concat("update: [", covered, ", ", end, ") belongs to no parameter"));
  }
  return launches;
}

}  // namespace

Task plan_control(const engine::TrainBinding& binding, const int* request_word) {
  // What the parts of a batch sum up must stand in one of them only.
  const bool first = binding.part == 0;
  Control work;
  work.control = binding.control;
  work.floats = binding.control_layout.floats();
  work.slot = binding.control_layout.slot(binding.rank);
  work.request_word = first ? request_word : nullptr;
  work.facts = first ? binding.facts : nullptr;
  Task task;
  task.concurrent = true;
  task.name = "control";
  if (work.request_word != nullptr) task.reads.push_back(bytes_of(work.request_word, 1));
  task.writes = {bytes_of(work.control, work.floats)};
  if (work.facts != nullptr) {
    task.reads.push_back(bytes_of(work.facts, 1));
    task.writes.push_back(bytes_of(work.facts, 1));
  }
  task.start = [work](Lane& lane) { begin_step(stream_of(lane), work); };
  return task;
}

Task plan_compute_time(engine::RankFacts* facts) {
  return {"compute time",
          {bytes_of(facts, 1)},
          {bytes_of(facts, 1)},
          [facts](Lane& lane) { note_compute_time(stream_of(lane), facts); },
          {},
          true};
}

Task plan_train_input(const engine::TrainBinding& binding, int batch, ValueType type, std::byte* x,
                      std::uint8_t* labels) {
  const TrainInput input{place_input(binding.data, binding.augment, batch, type, x, labels), binding.order,
                         binding.seed, binding.first_sample, binding.step};
  Task task = input_task("augment", input.place);
  task.reads.push_back(bytes_of(binding.step, 1));
  task.start = [input](Lane& lane) { train_input(stream_of(lane), input); };
  return task;
}

Task plan_evaluate_input(const engine::EvaluateBinding& binding, int batch, ValueType type, std::byte* x,
                         std::uint8_t* labels) {
  const InputPlace place = place_input(binding.data, binding.augment, batch, type, x, labels);
  Task task = input_task("evaluation input", place);
  task.reads.push_back(bytes_of(binding.cursor, 1));
  task.writes.push_back(bytes_of(binding.cursor, 1));
  task.start = [place, cursor = binding.cursor](Lane& lane) {
    evaluate_input(stream_of(lane), place, cursor);
  };
  return task;
}

Task plan_train_loss(const engine::TrainBinding& binding, const LossInput& input, std::byte* grad_logits,
                     ValueType grad_type) {
  Task task = loss_task("loss", input);
  task.reads.push_back(bytes_of(binding.control, kFigures));
  task.writes.push_back(bytes_of(binding.control, kFigures));
  task.writes.push_back({grad_logits, logits_of(input) * bytes_per(grad_type)});
  task.start = [input,
                rule = LossRule{1.0 / static_cast<double>(binding.global_batch), binding.label_smoothing},
                grad_type, grad_logits, sums = binding.control](Lane& lane) {
    train_loss(stream_of(lane), input, rule, grad_type, grad_logits, sums);
  };
  return task;
}

Task plan_evaluate_loss(const engine::EvaluateBinding& binding, const LossInput& input) {
  Task task = loss_task("evaluation loss", input);
  task.writes.push_back(bytes_of(binding.predictions, static_cast<std::size_t>(input.batch)));
  task.writes.push_back(bytes_of(binding.loss_sum, 1));
  task.start = [input, predictions = binding.predictions, loss_sum = binding.loss_sum](Lane& lane) {
    evaluate_loss(stream_of(lane), input, predictions, loss_sum);
  };
  return task;
}

Task plan_update(const engine::UpdateBinding& binding, const model::ParamTable& params,
                 const engine::ParamLayout& layout, double* partials, unsigned* counter) {
  std::vector<Update> launches;
  for (const Segments& segments : segments_of(binding.begin, binding.end, params, layout)) {
    launches.push_back({binding.params,
                        binding.grads,
                        binding.ema,
                        binding.control + ControlLayout::loss_sum,
                        binding.step,
                        binding.decay_sum,
                        !launches.empty(),
                        optim::Schedule(binding.schedule).rule(),
                        binding.ema_decay,
                        segments,
                        partials,
                        counter,
                        binding.optimizer,
                        {binding.states[0], binding.states[1]},
                        binding.clip_norm,
                        binding.gradient_norm,
                        binding.average_steps});
  }
  const std::size_t floats = binding.end - binding.begin;
  const engine::Bytes weights = bytes_of(binding.params + binding.begin, floats);
  const engine::Bytes ema = bytes_of(binding.ema + binding.begin, floats);
  Task task;
  task.name = concat("update ", binding.begin, "..", binding.end);
  task.reads = {weights, ema, bytes_of(binding.grads + binding.begin, floats),
                bytes_of(binding.control + ControlLayout::loss_sum, 1), bytes_of(binding.step, 1)};
  task.writes = {weights, ema, bytes_of(binding.decay_sum, 1)};
  for (const float* const state : binding.states) {
    if (state == nullptr) continue;
    task.reads.push_back(bytes_of(state + binding.begin, floats));
    task.writes.push_back(bytes_of(state + binding.begin, floats));
  }
  if (binding.gradient_norm != nullptr) task.reads.push_back(bytes_of(binding.gradient_norm, 1));
  task.start = [launches = std::move(launches)](Lane& lane) {
    for (const Update& launch : launches) update(stream_of(lane), launch);
  };
  return task;
}

Task plan_gradient_norm(const engine::GradientNormBinding& binding, double* partials, unsigned* counter) {
  Task task;
  task.name = "gradient norm";
  task.reads = {bytes_of(binding.grads, binding.floats)};
  task.writes = {bytes_of(binding.norm, 1)};
  task.start = [work = GradientNorm{binding.grads, binding.floats, binding.norm, partials, counter}](
                   Lane& lane) { gradient_norm(stream_of(lane), work); };
  return task;
}

Task plan_count(std::string name, ValueType type, const std::vector<CountedTensor>& tensors,
                std::byte* scratch) {
  const auto held = static_cast<int>(std::min<std::size_t>(tensors.size(), kMostCounted));
  Task task;
  task.name = std::move(name);
  task.writes = {{scratch, count_scratch_bytes(held)}};
  std::vector<Count> launches;
  for (const CountedTensor& tensor : tensors) {
    task.reads.push_back({static_cast<const std::byte*>(tensor.values),
                          (tensor.place(tensor.count - 1) + 1) * bytes_per(type)});
    task.writes.push_back(bytes_of(tensor.counts, 1));
    if (launches.empty() || launches.back().tensors == kMostCounted) {
      Count& launch = launches.emplace_back();
      launch.type = type;
      launch.ends = reinterpret_cast<ValueEnds*>(scratch);
      launch.above = reinterpret_cast<unsigned*>(launch.ends + static_cast<std::size_t>(held) * kCountBlocks);
    }
    Count& launch = launches.back();
    launch.items[launch.tensors++] = tensor;
  }
  task.start = [launches = std::move(launches)](Lane& lane) {
    for (const Count& work : launches) count_values(stream_of(lane), work);
  };
  return task;
}

Task plan_keep_images(const std::byte* x, ValueType type, std::size_t count, float* dst) {
  Task task;
  task.name = "keep images";
  task.reads = {{x, count * bytes_per(type)}};
  task.writes = {bytes_of(dst, count)};
  task.start = [=](Lane& lane) { to_fp32(stream_of(lane), type, x, dst, static_cast<std::int64_t>(count)); };
  return task;
}

Task plan_running(const engine::RunningBinding& binding, const model::ParamTable& params,
                  const engine::ParamLayout& layout) {
  const std::size_t begin = layout.running_begin();
  std::vector<Running> launches;
  for (const Segments& segments : segments_of(begin, layout.floats, params, layout)) {
    launches.push_back({binding.params, binding.ema, binding.control + ControlLayout::loss_sum,
                        binding.control + binding.control_layout.statistics(), begin, binding.step,
                        binding.ema_decay, segments, binding.gradient_norm, binding.average_steps});
  }
  const engine::Bytes running = bytes_of(binding.params + begin, layout.running_floats);
  const engine::Bytes ema = bytes_of(binding.ema + begin, layout.running_floats);
  Task task;
  task.name = "running statistics";
  task.reads = {running, ema, bytes_of(binding.control + ControlLayout::loss_sum, 1),
                bytes_of(binding.control + binding.control_layout.statistics(), layout.running_floats),
                bytes_of(binding.step, 1)};
  if (binding.gradient_norm != nullptr) task.reads.push_back(bytes_of(binding.gradient_norm, 1));
  task.writes = {running, ema};
  task.start = [launches = std::move(launches)](Lane& lane) {
    for (const Running& launch : launches) update_running(stream_of(lane), launch);
  };
  return task;
}

Task plan_advance(const engine::AdvanceBinding& binding, Advance ring) {
  Advance work = ring;
  work.control = binding.control;
  work.slots_floats = binding.control_layout.slots_floats();
  work.global_batch = static_cast<double>(binding.global_batch);
  work.decay_sums = binding.decay_sums.data();
  work.buckets = static_cast<int>(binding.decay_sums.size());
  work.gradient_norm = binding.gradient_norm;
  work.step = binding.step;
  work.steps = binding.steps;
  const auto steps = static_cast<std::size_t>(binding.steps);
  Task task;
  task.name = "advance";
  task.reads = {bytes_of(work.control, ControlLayout::header_floats + work.slots_floats),
                bytes_of(work.decay_sums, binding.decay_sums.size()), bytes_of(work.step, steps),
                bytes_of(work.replays, 1)};
  if (work.gradient_norm != nullptr) task.reads.push_back(bytes_of(work.gradient_norm, 1));
  task.writes = {bytes_of(work.step, steps), bytes_of(work.replays, 1),
                 bytes_of(work.entries, engine::kRecordRing),
                 bytes_of(work.slots, engine::kRecordRing * work.slots_floats)};
  task.start = [work](Lane& lane) { end_step(stream_of(lane), work); };
  return task;
}

Task plan_sum(std::string name, float* dst, const float* a, const float* b, std::size_t n) {
  Task task = elementwise_task(std::move(name), dst, a, b, n);
  task.start = [dst, a, b, n](Lane& lane) { add(stream_of(lane), dst, a, b, n); };
  return task;
}

Task plan_share(std::string name, float* dst, const float* a, const float* b, float share, std::size_t n) {
  Task task = elementwise_task(std::move(name), dst, a, b, n);
  task.start = [dst, a, b, share, n](Lane& lane) { take_share(stream_of(lane), dst, a, b, share, n); };
  return task;
}

Task plan_copy(std::string name, const std::vector<engine::CopyBinding>& bindings) {
  Task task;
  task.name = std::move(name);
  for (const engine::CopyBinding& copy : bindings) {
    task.reads.push_back({copy.src, copy.bytes});
    task.writes.push_back({copy.dst, copy.bytes});
  }
  task.start = [bindings](Lane& lane) {
    for (const engine::CopyBinding& copy : bindings) {
      if (copy.bytes == 0) continue;
      check(cudaMemcpyAsync(copy.dst, copy.src, copy.bytes, cudaMemcpyDefault, stream_of(lane)), "copying");
    }
  };
  return task;
}

Task plan_increment(std::string name, std::uint64_t* counter) {
  const engine::Bytes bytes = bytes_of(counter, 1);
  return {
      std::move(name), {bytes}, {bytes}, [counter](Lane& lane) { count_up(stream_of(lane), counter); }, {}};
}

}  // namespace cifar_mpi::cuda
