#include <utility>
#include <vector>

#include "cuda/batch_norm.hpp"
#include "cuda/group.hpp"
#include "cuda/lane.hpp"

namespace cifar_mpi::cuda {
namespace {

class BatchNormGroup final : public engine::Group {
 public:
  BatchNormGroup(SharedPlan& shared, engine::Contract contract, const BatchNorm& norm)
      : shared_(shared),
        contract_(std::move(contract)),
        norm_(norm),
        channels_(static_cast<std::size_t>(norm.channels)),
        first_counter_(shared.counter_words) {
    shared.counter_words += column_counters(norm.channels);
  }

  const engine::Contract& contract() const override { return contract_; }
  engine::GroupTasks tasks(const Operands& operands, Arena& arena) const override;

 private:
  /// As in Contract::masters, where kScale may be missing.
  enum Part { kScale, kBiases, kMean, kVariance };

  Bytes x(const Operands& o) const { return {o.src[0], contract_.src[0].value.bytes}; }
  Bytes grad_y(const Operands& o) const { return {o.grad_dst, contract_.dst.grad.bytes}; }
  static engine::ParamPlace place(const Operands& o, Part part) {
    const std::size_t missing = 4 - o.params.size();
    return part < missing ? engine::ParamPlace{} : o.params[part - missing];
  }
  Bytes bytes(const float* values) const { return values == nullptr ? Bytes{} : bytes_of(values, channels_); }
  Bytes param(const Operands& o, Part part) const { return bytes(place(o, part).master); }
  Bytes grad(const Operands& o, Part part) const { return bytes(place(o, part).grad); }
  Bytes moments(const BatchNormWork& work) const { return bytes_of(work.moments, 2 * channels_); }
  Bytes partials(const BatchNormWork& work) const { return bytes_of(work.partials, work.partial_floats()); }
  Bytes counters(const BatchNormWork& work) const {
    return bytes_of(work.counters, static_cast<std::size_t>(column_counters(norm_.channels)));
  }
  static void take_partials(BatchNormWork& work, Arena& arena) {
    work.partials = arena.take_array<float>(work.partial_floats());
  }

  Task sum_over_ranks(const Operands& o, const char* what) const {
    return engine::sum_over_ranks(contract_.name + what, o.rank_sums, 2 * channels_);
  }
  Bytes sums(const Operands& o) const { return bytes_of(o.rank_sums.memory, 2 * channels_); }
  BatchNormSums sums_of(const Operands& o) const {
    return {o.rank_sums.memory, o.rank_sums.ranks, place(o, kMean).master};
  }

  Task forward(const Operands& o, const BatchNormWork& work) const;
  std::vector<Task> forward_of_ranks(const Operands& o, const BatchNormWork& work) const;
  Task inference(const Operands& o, const BatchNormWork& work) const;
  Task backward(const Operands& o, const BatchNormWork& work) const;
  std::vector<Task> backward_of_ranks(const Operands& o, const BatchNormWork& work) const;
  void add_param_grads(const Operands& o, Task& task) const;

  SharedPlan& shared_;
  engine::Contract contract_;
  BatchNorm norm_;
  std::size_t channels_;
  int first_counter_;
};

engine::GroupTasks BatchNormGroup::tasks(const Operands& o, Arena& arena) const {
  BatchNormWork work;
  work.type = shared_.type();
  work.rows = norm_.rows;
  work.channels = norm_.channels;
  work.epsilon = norm_.epsilon;
  work.relu = norm_.relu;
  work.scale = place(o, kScale).master;
  work.biases = place(o, kBiases).master;
  engine::GroupTasks tasks;
  if (!o.training) {
    tasks.forward.push_back(inference(o, work));
    return tasks;
  }
  work.moments = arena.take_array<float>(2 * channels_);
  work.counters = shared_.counters.as<unsigned>() + first_counter_;
  take_partials(work, arena);
  const bool synced = o.rank_sums.memory != nullptr;
  tasks.forward = synced ? forward_of_ranks(o, work) : std::vector{forward(o, work)};
  if (o.grad_src[0] == nullptr && place(o, kBiases).grad == nullptr) return tasks;
  take_partials(work, arena);
  const bool shares =
      synced && o.grad_src[0] != nullptr;  // gradients of parameters are summed with the others
  tasks.backward = shares ? backward_of_ranks(o, work) : std::vector{backward(o, work)};
  return tasks;
}

Task BatchNormGroup::forward(const Operands& o, const BatchNormWork& work) const {
  return {contract_.name + " forward",
          {x(o), param(o, kScale), param(o, kBiases)},
          {{o.dst, contract_.dst.value.bytes},
           moments(work),
           partials(work),
           counters(work),
           grad(o, kMean),
           grad(o, kVariance)},
          [work, from = o.src[0], to = o.dst, mean = place(o, kMean).grad,
           variance = place(o, kVariance).grad, share = o.statistics_share](Lane& lane) {
            batch_norm_forward(stream_of(lane), work, from, to, mean, variance, share);
          },
          {}};
}

std::vector<Task> BatchNormGroup::forward_of_ranks(const Operands& o, const BatchNormWork& work) const {
  const BatchNormSums of = sums_of(o);
  const Bytes around = bytes(of.around);
  Task first{contract_.name + " moments",
             {x(o), around},
             {partials(work), counters(work), sums(o)},
             [work, from = o.src[0], of](Lane& lane) {
               batch_norm_rank_moments(stream_of(lane), work, from, of.around, of.memory);
             },
             {}};
  Task second{contract_.name + " forward",
              {x(o), param(o, kScale), param(o, kBiases), around, sums(o)},
              {{o.dst, contract_.dst.value.bytes}, moments(work), grad(o, kMean), grad(o, kVariance)},
              [work, of, from = o.src[0], to = o.dst, mean = place(o, kMean).grad,
               variance = place(o, kVariance).grad, share = o.statistics_share](Lane& lane) {
                batch_norm_forward_of_ranks(stream_of(lane), work, of, from, to, mean, variance, share);
              },
              {}};
  return {std::move(first), sum_over_ranks(o, " moments of all ranks"), std::move(second)};
}

Task BatchNormGroup::inference(const Operands& o, const BatchNormWork& work) const {
  return {contract_.name + " forward",
          {x(o), param(o, kScale), param(o, kBiases), param(o, kMean), param(o, kVariance)},
          {{o.dst, contract_.dst.value.bytes}},
          [work, from = o.src[0], to = o.dst, mean = place(o, kMean).master,
           variance = place(o, kVariance).master](Lane& lane) {
            batch_norm_inference(stream_of(lane), work, from, to, mean, variance);
          },
          {}};
}

Task BatchNormGroup::backward(const Operands& o, const BatchNormWork& work) const {
  Task task{contract_.name + " backward",
            {x(o), grad_y(o), param(o, kScale), param(o, kBiases), moments(work)},
            {partials(work), counters(work)},
            [work, from = o.src[0], grad = o.grad_dst, to = o.grad_src[0], scale = place(o, kScale).grad,
             biases = place(o, kBiases).grad](Lane& lane) {
              batch_norm_backward(stream_of(lane), work, from, grad, scale, biases, to);
            },
            {}};
  add_param_grads(o, task);
  if (o.grad_src[0] != nullptr) task.writes.push_back({o.grad_src[0], contract_.src[0].grad.bytes});
  return task;
}

void BatchNormGroup::add_param_grads(const Operands& o, Task& task) const {
  for (const Part part : {kScale, kBiases}) {
    if (place(o, part).grad != nullptr) task.writes.push_back(grad(o, part));
  }
}

std::vector<Task> BatchNormGroup::backward_of_ranks(const Operands& o, const BatchNormWork& work) const {
  const std::vector<Bytes> reads{x(o), grad_y(o), param(o, kScale), param(o, kBiases), moments(work)};
  Task first{contract_.name + " gradient sums",
             reads,
             {partials(work), counters(work), sums(o)},
             [work, from = o.src[0], grad = o.grad_dst, scale = place(o, kScale).grad,
              biases = place(o, kBiases).grad, to = o.rank_sums.memory](Lane& lane) {
               batch_norm_gradient_sums(stream_of(lane), work, from, grad, scale, biases, to);
             },
             {}};
  add_param_grads(o, first);
  Task second{contract_.name + " backward",
              reads,
              {partials(work), {o.grad_src[0], contract_.src[0].grad.bytes}},
              [work, of = sums_of(o), from = o.src[0], grad = o.grad_dst, to = o.grad_src[0]](Lane& lane) {
                batch_norm_backward_of_ranks(stream_of(lane), work, of, from, grad, to);
              },
              {}};
  second.reads.push_back(sums(o));
  return {std::move(first), sum_over_ranks(o, " gradient sums of all ranks"), std::move(second)};
}

}  // namespace

std::unique_ptr<engine::Group> make_batch_norm_group(SharedPlan& shared, engine::Contract contract,
                                                     const BatchNorm& norm) {
  return std::make_unique<BatchNormGroup>(shared, std::move(contract), norm);
}

}  // namespace cifar_mpi::cuda
