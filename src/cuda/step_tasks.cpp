#include "cuda/step_tasks.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "cifar_mpi/engine/step_tasks.hpp"
#include "cuda/augment.hpp"
#include "cuda/count.hpp"
#include "cuda/handles.hpp"
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
  return {spec, data.images, data.labels, data.count, batch, type, x, labels};
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

/// As many segments per launch as fit; if hidden matrices have moves, they do not share one with others.
std::vector<Segments> launches_of(const std::vector<engine::Segment>& segments, bool moves) {
  std::vector<Segments> launches;
  for (const engine::Segment& segment : segments) {
    if (launches.empty() || launches.back().count == Segments::kMost ||
        (moves && launches.back().items[0].hidden_matrix != segment.hidden_matrix)) {
      launches.emplace_back();
    }
    launches.back().items[launches.back().count++] = segment;
  }
  return launches;
}

}  // namespace

Task plan_control(const engine::TrainBinding& binding, const int* request_word) {
  Control work;
  work.control = binding.control;
  work.floats = binding.control_layout.floats();
  work.slot = binding.control_layout.slot(binding.rank);
  work.request_word = binding.own_requests() != nullptr ? request_word : nullptr;
  work.facts = binding.own_facts();
  Task task = engine::declare_control(binding, bytes_of(work.request_word, 1));
  task.concurrent = true;
  task.start = [work](Lane& lane) { begin_step(stream_of(lane), work); };
  return task;
}

Task plan_compute_time(engine::RankFacts* facts) {
  Task task = engine::declare_compute_time(facts);
  task.start = [facts](Lane& lane) { note_compute_time(stream_of(lane), facts); };
  task.concurrent = true;
  return task;
}

Task plan_train_input(const engine::TrainBinding& binding, int batch, ValueType type, std::byte* x,
                      std::uint8_t* labels) {
  Task task = engine::declare_train_input(binding, batch, bytes_per(type), x, labels);
  const TrainInput input{place_input(binding.data, binding.augment, batch, type, x, labels), binding.order,
                         binding.seed, binding.first_sample, binding.step};
  task.start = [input](Lane& lane) { train_input(stream_of(lane), input); };
  return task;
}

Task plan_evaluate_input(const engine::EvaluateBinding& binding, int batch, ValueType type, std::byte* x,
                         std::uint8_t* labels) {
  const InputPlace place = place_input(binding.data, binding.augment, batch, type, x, labels);
  Task task = engine::declare_evaluate_input(binding, batch, bytes_per(type), x, labels);
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
  if (binding.logits != nullptr)
    task.writes.push_back(bytes_of(
        binding.logits, static_cast<std::size_t>(input.batch) * static_cast<std::size_t>(input.classes)));
  task.start = [input, predictions = binding.predictions, loss_sum = binding.loss_sum,
                logits = binding.logits](Lane& lane) {
    evaluate_loss(stream_of(lane), input, predictions, loss_sum, logits);
  };
  return task;
}

Task plan_update(const engine::UpdateBinding& binding, const model::ParamTable& params,
                 const engine::ParamLayout& layout, double* partials, unsigned* counter) {
  std::vector<Update> launches;
  for (const Segments& segments : launches_of(engine::segments_of(binding.begin, binding.end, params, layout),
                                              binding.moves != nullptr)) {
    launches.push_back({binding.params,
                        binding.grads,
                        binding.ema,
                        binding.control + ControlLayout::loss_sum,
                        binding.step,
                        binding.decay_sum,
                        !launches.empty(),
                        optim::Schedule(binding.schedule).rule(),
                        binding.average,
                        segments,
                        partials,
                        counter,
                        binding.optimizer,
                        {binding.states[0], binding.states[1]},
                        binding.clip_norm,
                        binding.gradient_norm,
                        binding.average_steps});
    if (binding.moves == nullptr || !segments.items[0].hidden_matrix) continue;
    Update& moving = launches.back();
    moving.grads = binding.moves;
    moving.optimizer.kind = optim::OptimizerKind::sgd;
    moving.states[0] = nullptr;
    moving.clip_norm = std::numeric_limits<double>::max();  // moves are not clipped
    moving.decays_by_loss = false;
  }
  Task task = engine::declare_update(binding);
  task.start = [launches = std::move(launches)](Lane& lane) {
    for (const Update& launch : launches) update(stream_of(lane), launch);
  };
  return task;
}

Task plan_gradient_norm(const engine::GradientNormBinding& binding, double* partials, unsigned* counter) {
  Task task = engine::declare_gradient_norm(binding);
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
  for (const Segments& segments :
       launches_of(engine::segments_of(begin, layout.floats, params, layout), false)) {
    launches.push_back({binding.params, binding.ema, binding.control + ControlLayout::loss_sum,
                        binding.control + binding.control_layout.statistics(), begin, binding.step,
                        binding.average, segments, binding.gradient_norm, binding.average_steps});
  }
  Task task = engine::declare_running(binding, layout);
  task.start = [launches = std::move(launches)](Lane& lane) {
    for (const Running& launch : launches) update_running(stream_of(lane), launch);
  };
  return task;
}

Task plan_lookahead(const engine::LookaheadBinding& binding) {
  Task task = engine::declare_lookahead(binding);
  task.start = [work = LookaheadPull{binding.params, binding.slow, binding.ema, binding.floats, binding.rule,
                                     binding.average, binding.control + ControlLayout::loss_sum, binding.step,
                                     binding.gradient_norm}](Lane& lane) { pull(stream_of(lane), work); };
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
  Task task = engine::declare_advance(binding);
  task.reads.push_back(bytes_of(work.replays, 1));
  for (const engine::Bytes& bytes : {bytes_of(work.replays, 1), bytes_of(work.entries, engine::kRecordRing),
                                     bytes_of(work.slots, engine::kRecordRing * work.slots_floats)})
    task.writes.push_back(bytes);
  task.start = [work](Lane& lane) { end_step(stream_of(lane), work); };
  return task;
}

Task plan_sum(std::string name, const engine::SumBinding& binding) {
  Task task = engine::declare_sum(std::move(name), binding);
  task.start = [binding](Lane& lane) {
    const auto& [dst, a, b, floats, share, sign] = binding;
    add(stream_of(lane), dst, a, b, floats, share, sign);
  };
  return task;
}

Task plan_copy(std::string name, const std::vector<engine::CopyBinding>& bindings) {
  Task task = engine::declare_copy(std::move(name), bindings);
  task.start = [bindings](Lane& lane) {
    for (const engine::CopyBinding& copy : bindings) {
      if (copy.bytes == 0) continue;
      check(cudaMemcpyAsync(copy.dst, copy.src, copy.bytes, cudaMemcpyDefault, stream_of(lane)), "copying");
    }
  };
  return task;
}

Task plan_increment(std::string name, std::uint64_t* counter) {
  Task task = engine::declare_increment(std::move(name), counter);
  task.start = [counter](Lane& lane) { count_up(stream_of(lane), counter); };
  return task;
}

}  // namespace cifar_mpi::cuda
