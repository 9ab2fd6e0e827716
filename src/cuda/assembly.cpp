#include "cuda/assembly.hpp"

#include <algorithm>
#include <variant>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/budget.hpp"
#include "cuda/conv.hpp"
#include "cuda/lane.hpp"
#include "cuda/norm.hpp"
#include "cuda/norm_pool.hpp"
#include "cuda/pool.hpp"
#include "cuda/relu.hpp"
#include "cuda/sum.hpp"

namespace cifar_mpi::cuda {

using engine::Bytes;
using engine::Lane;
using engine::Task;

std::size_t counter_words(const NetPlan& plan) {
  std::size_t words = 0;
  for (const Stage& stage : plan.stages) {
    const auto* const affine = std::get_if<Affine>(&stage.work);
    if (affine != nullptr) words += static_cast<std::size_t>(column_counters(affine->outputs));
  }
  return words;
}

Assembly::Assembly(const NetPlan& plan, const NetKernels& kernels, Purpose purpose, engine::Arena& arena,
                   unsigned* counters)
    : plan_(plan), kernels_(kernels), purpose_(purpose), arena_(arena), type_(value_type(plan.precision)) {
  if (type_ == ValueType::bf16) rounded_ = arena_.take(plan_.layout.floats * bytes_per(ValueType::bf16));
  place_edges();
  place_extras(counters);
  place_scratch();
}

void Assembly::place_edges() {
  const std::size_t edges = plan_.edges.size();
  values_.resize(edges);
  grads_.resize(edges, nullptr);
  for (std::size_t e = 0; e < edges; ++e) {
    values_[e] = arena_.take(static_cast<std::size_t>(values_in(e)) * bytes_per(type_of(e)));
  }
  if (!training()) return;
  for (std::size_t e = edges; e-- > 0;) {
    if (!plan_.edges[e].wants_grad) continue;
    const bool in_place = e + 1 < edges && std::holds_alternative<Rectify>(plan_.stages[e].work);
    grads_[e] =
        in_place ? grads_[e + 1] : arena_.take(static_cast<std::size_t>(values_in(e)) * bytes_per(type_));
  }
}

void Assembly::place_affine(const Affine& affine, const AffineKernels& kernels, Extras& extras) {
  const auto bytes = [&](std::int64_t values) { return static_cast<std::size_t>(values) * bytes_per(type_); };
  const std::int64_t weights = std::int64_t{affine.inner} * affine.outputs;
  if (!affine.is_conv()) return;
  if (kernels.library) {
    extras.library_weights = arena_.take(bytes(weights));
    if (training()) extras.library_grad = arena_.take(bytes(weights));
    return;
  }
  const PatchShape patches = affine.forward_patches(plan_.batch);
  extras.patches = arena_.take(bytes(patches.rows() * patches.row));
  if (!training() || !affine.wants_grad_x) return;
  const PatchShape back = affine.backward_patches(plan_.batch);
  extras.grad_patches = arena_.take(bytes(back.rows() * back.row));
  extras.turned = arena_.take(bytes(std::int64_t{back.row} * affine.in.channels));
}

void Assembly::place_extras(unsigned* counters) {
  extras_.resize(plan_.stages.size());
  for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
    Extras& extras = extras_[s];
    if (const auto* const affine = std::get_if<Affine>(&plan_.stages[s].work)) {
      place_affine(*affine, *kernels_.of(s), extras);
      extras.counters = counters;
      counters += column_counters(affine->outputs);
      const ColumnChunks chunks = column_chunks(affine->rows(plan_.batch));
      partial_floats_ = std::max(partial_floats_, static_cast<std::size_t>(chunks.chunks) *
                                                      static_cast<std::size_t>(affine->outputs));
    }
    const Stage::Work& work = plan_.stages[s].work;
    if (!training()) continue;
    const auto values = static_cast<std::size_t>(values_in(s + 1));
    const bool pools_last = std::holds_alternative<PoolNorm>(work);
    if (pools_last || std::holds_alternative<Pool>(work) || std::holds_alternative<NormPool>(work)) {
      extras.taps = arena_.take_array<std::uint8_t>(values);
    }
    if (pools_last) extras.pooled = arena_.take(values * bytes_per(type_));
  }
}

void Assembly::place_scratch() {
  scratch_[0].workspace = arena_.take(kernels_.workspace_bytes());
  if (!training()) return;
  scratch_[1].workspace = arena_.take(kernels_.workspace_bytes());
  for (Scratch& scratch : scratch_) scratch.partials = arena_.take_array<float>(partial_floats_);
}

Bytes Assembly::value(std::size_t edge) const {
  return {values_[edge], static_cast<std::size_t>(values_in(edge)) * bytes_per(type_of(edge))};
}

Bytes Assembly::taps(std::size_t s) const {
  return engine::bytes_of(extras_[s].taps,
                          extras_[s].taps != nullptr ? static_cast<std::size_t>(values_in(s + 1)) : 0);
}

Bytes Assembly::pooled(std::size_t s) const {
  const auto values = static_cast<std::size_t>(values_in(s + 1));
  return {extras_[s].pooled, extras_[s].pooled != nullptr ? values * bytes_per(type_) : 0};
}

Bytes Assembly::grad(std::size_t edge) const {
  return {grads_[edge], static_cast<std::size_t>(values_in(edge)) * bytes_per(type_)};
}

Bytes Assembly::span_of(const float* block, std::size_t p, std::size_t floats) const {
  return engine::bytes_of(block + plan_.layout.entries[p].offset, floats);
}

Bytes Assembly::weights_of(const Affine& affine, const float* params) const {
  const auto floats = static_cast<std::size_t>(affine.row) * static_cast<std::size_t>(affine.outputs);
  if (type_ == ValueType::fp32) return span_of(params, affine.weights, floats);
  const std::size_t width = bytes_per(type_);
  return {rounded_ + plan_.layout.entries[affine.weights].offset * width, floats * width};
}

void Assembly::prepare(const float* params, std::vector<Task>& tasks) const {
  if (rounded_ != nullptr) {
    const auto floats = static_cast<std::int64_t>(plan_.layout.floats);
    tasks.push_back({"round weights",
                     {engine::bytes_of(params, plan_.layout.floats)},
                     {{rounded_, plan_.layout.floats * bytes_per(ValueType::bf16)}},
                     [=, to = rounded_](Lane& lane) { round_to_bf16(stream_of(lane), params, to, floats); },
                     {},
                     true});
  }
  for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
    const auto* const affine = std::get_if<Affine>(&plan_.stages[s].work);
    const Extras& extras = extras_[s];
    if (affine == nullptr || (extras.library_weights == nullptr && extras.turned == nullptr)) continue;
    const float* const master = params + plan_.layout.entries[affine->weights].offset;
    const Bytes read = engine::bytes_of(
        master, static_cast<std::size_t>(affine->inner) * static_cast<std::size_t>(affine->outputs));
    if (std::byte* const to = extras.library_weights) {
      tasks.push_back({name(s) + " weights",
                       {read},
                       {{to, read.size / sizeof(float) * bytes_per(type_)}},
                       [=, type = type_, rows = affine->inner, columns = affine->outputs](Lane& lane) {
                         transpose_weights(stream_of(lane), master, to, type, rows, columns);
                       },
                       {},
                       true});
    }
    if (std::byte* const to = extras.turned) {
      const TurnedWeights shape{affine->kernel, affine->in.channels, affine->outputs,
                                affine->backward_patches(plan_.batch).row};
      const auto values = static_cast<std::size_t>(shape.row) * static_cast<std::size_t>(shape.in);
      tasks.push_back(
          {name(s) + " turn",
           {read},
           {{to, values * bytes_per(type_)}},
           [=, type = type_](Lane& lane) { turn_weights(stream_of(lane), shape, master, to, type); },
           {},
           true});
    }
  }
}

void Assembly::forward(const float* params, std::vector<Task>& tasks) const {
  for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
    std::visit([&](const auto& work) { forward_tasks(s, work, params, tasks); }, plan_.stages[s].work);
  }
}

void Assembly::backward(const float* params, float* grads, std::vector<Task>& tasks) const {
  const Blocks blocks{params, grads};
  for (std::size_t s = plan_.stages.size(); s-- > 0;) {
    if (grads_[s + 1] == nullptr) continue;
    std::visit([&](const auto& work) { backward_tasks(s, work, blocks, tasks); }, plan_.stages[s].work);
  }
}

Task Assembly::product_task(Task task, const Affine& affine) const {
  task.demand = {plan_.batch * affine.flops, engine::bytes_moved(task)};
  task.writes.push_back(workspace(task.aside));
  return task;
}

Task Assembly::library_forward(std::size_t s, const Affine& affine, const float* params) const {
  const LibraryConv* const conv = &*kernels_.of(s)->library;
  const auto outputs = static_cast<std::size_t>(affine.outputs);
  const std::size_t weights = static_cast<std::size_t>(affine.inner) * outputs * bytes_per(type_);
  const Bytes x = value(s), y = value(s + 1), bias = span_of(params, affine.biases, outputs);
  return product_task(
      {name(s) + " forward",
       {x, {extras_[s].library_weights, weights}, bias},
       {y},
       [=, from = values_[s], to = values_[s + 1], copy = extras_[s].library_weights,
        space = scratch(false).workspace, biases = params + plan_.layout.entries[affine.biases].offset,
        type = type_, rows = affine.rows(plan_.batch), columns = affine.outputs,
        relu = affine.relu](Lane& lane) {
         conv->forward(stream_of(lane), from, copy, to, space);
         add_bias(stream_of(lane), type, to, biases, rows, columns, relu);
       },
       {}},
      affine);
}

Task Assembly::product_forward(std::size_t s, const Affine& affine, const float* params) const {
  const Matmul* const product = &kernels_.of(s)->forward;
  const auto outputs = static_cast<std::size_t>(affine.outputs);
  const std::size_t at = plan_.layout.entries[affine.biases].offset;
  const bool narrow = type_of(s + 1) == ValueType::bf16;
  const Bytes bias =
      narrow ? Bytes{rounded_ + at * bytes_per(ValueType::bf16), outputs * bytes_per(ValueType::bf16)}
             : engine::bytes_of(params + at, outputs);
  const Bytes weights = weights_of(affine, params);
  const Bytes x = affine.is_conv() ? Bytes{extras_[s].patches, product->bytes_a()} : value(s);
  return product_task({name(s) + " forward",
                       {x, weights, bias},
                       {value(s + 1)},
                       [=, to = values_[s + 1], space = scratch(false).workspace](Lane& lane) {
                         product->run(stream_of(lane), x.begin, weights.begin, to, bias.begin, space);
                       },
                       {}},
                      affine);
}

void Assembly::forward_tasks(std::size_t s, const Affine& affine, const float* params,
                             std::vector<Task>& tasks) const {
  if (kernels_.of(s)->library) {
    tasks.push_back(library_forward(s, affine, params));
    return;
  }
  if (affine.is_conv()) {
    tasks.push_back(
        {name(s) + " patches",
         {value(s)},
         {{extras_[s].patches, kernels_.of(s)->forward.bytes_a()}},
         [shape = affine.forward_patches(plan_.batch), type = type_, from = values_[s],
          to = extras_[s].patches](Lane& lane) { gather_patches(stream_of(lane), shape, type, from, to); },
         {}});
  }
  tasks.push_back(product_forward(s, affine, params));
}

void Assembly::forward_tasks(std::size_t s, const Pool& pool, const float*, std::vector<Task>& tasks) const {
  tasks.push_back(
      {name(s) + " forward",
       {value(s)},
       {value(s + 1), taps(s)},
       [=, type = type_, from = values_[s], to = values_[s + 1], taps = extras_[s].taps](Lane& lane) {
         pool_forward(stream_of(lane), pool.place, type, pool.relu, from, to, taps);
       },
       {}});
}

void Assembly::forward_tasks(std::size_t s, const Norm& norm, const float*, std::vector<Task>& tasks) const {
  const int channels = plan_.edges[s].extent.channels;
  const NormShape shape{norm.rule, values_in(s) / channels, channels, type_};
  tasks.push_back({name(s) + " forward",
                   {value(s)},
                   {value(s + 1)},
                   [=, from = values_[s], to = values_[s + 1]](Lane& lane) {
                     norm_forward(stream_of(lane), shape, from, to);
                   },
                   {}});
}

void Assembly::forward_tasks(std::size_t s, const PoolNorm& both, const float*,
                             std::vector<Task>& tasks) const {
  const NormPoolShape shape{both.pool.place, both.norm.rule, type_, both.pool.relu};
  tasks.push_back({name(s) + " forward",
                   {value(s)},
                   {value(s + 1), taps(s), pooled(s)},
                   [shape, from = values_[s], to = values_[s + 1], extras = extras_[s]](Lane& lane) {
                     pool_norm_forward(stream_of(lane), shape, from, extras.pooled, extras.taps, to);
                   },
                   {}});
}

void Assembly::forward_tasks(std::size_t s, const NormPool& both, const float*,
                             std::vector<Task>& tasks) const {
  const NormPoolShape shape{both.pool.place, both.norm.rule, type_, both.norm.relu};
  tasks.push_back({name(s) + " forward",
                   {value(s)},
                   {value(s + 1), taps(s)},
                   [shape, from = values_[s], to = values_[s + 1], taps = extras_[s].taps](Lane& lane) {
                     norm_pool_forward(stream_of(lane), shape, from, taps, to);
                   },
                   {}});
}

void Assembly::forward_tasks(std::size_t s, const Rectify&, const float*, std::vector<Task>& tasks) const {
  tasks.push_back({name(s) + " forward",
                   {value(s)},
                   {value(s + 1)},
                   [type = type_, count = values_in(s), from = values_[s], to = values_[s + 1]](Lane& lane) {
                     relu_forward(stream_of(lane), type, from, to, count);
                   },
                   {}});
}

}  // namespace cifar_mpi::cuda
