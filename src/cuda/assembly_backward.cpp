#include <utility>

#include "cuda/assembly.hpp"
#include "cuda/conv.hpp"
#include "cuda/lane.hpp"
#include "cuda/norm.hpp"
#include "cuda/norm_pool.hpp"
#include "cuda/pool.hpp"
#include "cuda/relu.hpp"
#include "cuda/sum.hpp"

/// The backward half of an Assembly.
namespace cifar_mpi::cuda {

using engine::Bytes;
using engine::Lane;
using engine::Task;

Task Assembly::bias_gradient(std::size_t s, const Affine& affine, float* grads) const {
  const auto outputs = static_cast<std::size_t>(affine.outputs);
  const bool aside = !affine.masks;
  float* const partials = scratch(aside).partials;
  ColumnSum work;
  work.type = type_;
  work.rows = affine.rows(plan_.batch);
  work.columns = affine.outputs;
  work.grad = grads_[s + 1];
  work.y = affine.masks ? values_[s + 1] : nullptr;
  work.sums = grads + plan_.layout.entries[affine.biases].offset;
  work.partials = partials;
  work.counters = extras_[s].counters;
  Task task{name(s) + " bias gradient",
            {grad(s + 1)},
            {engine::bytes_of(work.sums, outputs), engine::bytes_of(partials, partial_floats_),
             engine::bytes_of(work.counters, static_cast<std::size_t>(column_counters(affine.outputs)))},
            [work](Lane& lane) { sum_columns(stream_of(lane), work); },
            {},
            aside};
  task.demand.bytes = static_cast<double>(grad(s + 1).size);  // the sums are small
  if (affine.masks) {
    task.reads.push_back(value(s + 1));
    task.writes.push_back(grad(s + 1));
    task.demand.bytes += static_cast<double>(value(s + 1).size + grad(s + 1).size);
  }
  return task;
}

Task Assembly::weight_gradient(std::size_t s, const Affine& affine, float* grads) const {
  const AffineKernels& kernels = *kernels_.of(s);
  float* const to = grads + plan_.layout.entries[affine.weights].offset;
  const auto outputs = static_cast<std::size_t>(affine.outputs);
  const auto inner = static_cast<std::size_t>(affine.inner);
  const bool aside = affine.wants_grad_x;  // else nothing is left to run beside
  std::byte* const space = scratch(aside).workspace;
  if (const LibraryConv* const conv = kernels.library ? &*kernels.library : nullptr) {
    std::byte* const copy = extras_[s].library_grad;
    return product_task({name(s) + " weight gradient",
                         {value(s), grad(s + 1)},
                         {engine::bytes_of(to, inner * outputs), {copy, inner * outputs * bytes_per(type_)}},
                         [=, x = values_[s], grad_y = grads_[s + 1], type = type_, rows = affine.inner,
                          columns = affine.outputs](Lane& lane) {
                           conv->weight_gradient(stream_of(lane), x, grad_y, copy, space);
                           transpose_gradient(stream_of(lane), copy, type, to, rows, columns);
                         },
                         {},
                         aside},
                        affine);
  }
  const Matmul* const product = &kernels.weight_gradient;
  const Bytes x = affine.is_conv() ? Bytes{extras_[s].patches, product->bytes_a()} : value(s);
  return product_task({name(s) + " weight gradient",
                       {x, grad(s + 1)},
                       {engine::bytes_of(to, static_cast<std::size_t>(affine.row) * outputs)},
                       [=, grad_y = grads_[s + 1]](Lane& lane) {
                         product->run(stream_of(lane), x.begin, grad_y, to, nullptr, space);
                       },
                       {},
                       aside},
                      affine);
}

void Assembly::data_gradient(std::size_t s, const Affine& affine, const float* params,
                             std::vector<Task>& tasks) const {
  const AffineKernels& kernels = *kernels_.of(s);
  const std::string full = name(s) + " data gradient";
  const auto weights = static_cast<std::size_t>(affine.inner) * static_cast<std::size_t>(affine.outputs);
  if (const LibraryConv* const conv = kernels.library ? &*kernels.library : nullptr) {
    tasks.push_back(product_task({full,
                                  {grad(s + 1), {extras_[s].library_weights, weights * bytes_per(type_)}},
                                  {grad(s)},
                                  [=, copy = extras_[s].library_weights, grad_y = grads_[s + 1],
                                   to = grads_[s], space = scratch(false).workspace](Lane& lane) {
                                    conv->data_gradient(stream_of(lane), copy, grad_y, to, space);
                                  },
                                  {}},
                                 affine));
    return;
  }
  const Matmul* const product = &*kernels.data_gradient;
  Bytes a = grad(s + 1);
  if (affine.is_conv()) {
    const PatchShape shape = affine.backward_patches(plan_.batch);
    const Bytes patches{extras_[s].grad_patches, product->bytes_a()};
    tasks.push_back({name(s) + " gradient patches",
                     {a},
                     {patches},
                     [shape, type = type_, from = grads_[s + 1], to = extras_[s].grad_patches](Lane& lane) {
                       gather_patches(stream_of(lane), shape, type, from, to);
                     },
                     {}});
    a = patches;
  }
  const Bytes b =
      affine.is_conv() ? Bytes{extras_[s].turned, product->bytes_b()} : weights_of(affine, params);
  tasks.push_back(product_task({full,
                                {a, b},
                                {grad(s)},
                                [=, to = grads_[s], space = scratch(false).workspace](Lane& lane) {
                                  product->run(stream_of(lane), a.begin, b.begin, to, nullptr, space);
                                },
                                {}},
                               affine));
}

/// The bias gradient comes first where it also masks what the other two read; else it and the weight gradient
/// run beside the data gradient and what follows it.
void Assembly::backward_tasks(std::size_t s, const Affine& affine, const Blocks& blocks,
                              std::vector<Task>& tasks) const {
  tasks.push_back(bias_gradient(s, affine, blocks.grads));
  tasks.push_back(weight_gradient(s, affine, blocks.grads));
  if (affine.wants_grad_x) data_gradient(s, affine, blocks.params, tasks);
}

void Assembly::backward_tasks(std::size_t s, const Pool& pool, const Blocks&,
                              std::vector<Task>& tasks) const {
  if (grads_[s] == nullptr) return;
  tasks.push_back({name(s) + " backward",
                   {grad(s + 1), taps(s)},
                   {grad(s)},
                   [=, type = type_, taps = extras_[s].taps, grad_y = grads_[s + 1], to = grads_[s]](
                       Lane& lane) { pool_backward(stream_of(lane), pool.place, type, taps, grad_y, to); },
                   {}});
}

void Assembly::backward_tasks(std::size_t s, const Norm& norm, const Blocks&,
                              std::vector<Task>& tasks) const {
  if (grads_[s] == nullptr) return;
  const int channels = plan_.edges[s].extent.channels;
  const NormShape shape{norm.rule, values_in(s) / channels, channels, type_};
  tasks.push_back({name(s) + " backward",
                   {value(s), grad(s + 1)},
                   {grad(s)},
                   [=, relu = norm.relu, x = values_[s], grad_y = grads_[s + 1], to = grads_[s]](Lane& lane) {
                     norm_backward(stream_of(lane), shape, relu, x, grad_y, to);
                   },
                   {}});
}

void Assembly::backward_tasks(std::size_t s, const PoolNorm& both, const Blocks&,
                              std::vector<Task>& tasks) const {
  if (grads_[s] == nullptr) return;
  const NormPoolShape shape{both.pool.place, both.norm.rule, type_, both.pool.relu};
  tasks.push_back({name(s) + " backward",
                   {pooled(s), taps(s), grad(s + 1)},
                   {grad(s)},
                   [shape, extras = extras_[s], grad_y = grads_[s + 1], to = grads_[s]](Lane& lane) {
                     pool_norm_backward(stream_of(lane), shape, extras.pooled, extras.taps, grad_y, to);
                   },
                   {}});
}

void Assembly::backward_tasks(std::size_t s, const NormPool& both, const Blocks&,
                              std::vector<Task>& tasks) const {
  if (grads_[s] == nullptr) return;
  const NormPoolShape shape{both.pool.place, both.norm.rule, type_, both.norm.relu};
  tasks.push_back({name(s) + " backward",
                   {value(s), taps(s), grad(s + 1)},
                   {grad(s)},
                   [shape, x = values_[s], taps = extras_[s].taps, grad_y = grads_[s + 1], to = grads_[s]](
                       Lane& lane) { norm_pool_backward(stream_of(lane), shape, x, taps, grad_y, to); },
                   {}});
}

/// Its two edges share one gradient.
void Assembly::backward_tasks(std::size_t s, const Rectify& rectify, const Blocks&,
                              std::vector<Task>& tasks) const {
  if (grads_[s] == nullptr || !rectify.masks) return;
  tasks.push_back({name(s) + " backward",
                   {value(s + 1), grad(s)},
                   {grad(s)},
                   [type = type_, count = values_in(s), y = values_[s + 1], to = grads_[s]](Lane& lane) {
                     relu_mask(stream_of(lane), type, y, to, count);
                   },
                   {}});
}

}  // namespace cifar_mpi::cuda
