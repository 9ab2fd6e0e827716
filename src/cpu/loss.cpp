#include "cpu/loss.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "cifar_mpi/base/text.hpp"
#include "cpu/bf16.hpp"
#include "cpu/parallel.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::ControlLayout;

/// Samples whose results are kept on the stack until they are added in order.
constexpr int kSamples = 256;

struct Sample {
  double loss = 0.0;
  std::uint8_t predicted = 0;
  bool counts = false;
};

/// Target probabilities of a sample: `hit` for its class, `spread` for each other one.
struct Target {
  double hit = 1.0;
  double spread = 0.0;
};

Target target_of(double smoothing, int classes) {
  const double spread = smoothing / classes;
  return {1.0 - smoothing + spread, spread};
}

/// The unnormalized softmax of one row of logits: exp(z − largest), with sum `sum`.
struct Row {
  const float* logits = nullptr;
  int classes = 0;
  int best = 0;
  double sum = 0.0;

  Row(const float* first, int count) : logits(first), classes(count) {
    for (int j = 1; j < classes; ++j) {
      if (logits[j] > logits[best]) best = j;
    }
    for (int j = 0; j < classes; ++j) sum += power(j);
  }
  double power(int j) const { return static_cast<double>(std::exp(logits[j] - logits[best])); }

  double below_largest(int j) const { return static_cast<double>(logits[j]) - logits[best]; }

  Sample against(std::uint8_t label, const Target& target) const {
    Sample sample;
    sample.predicted = static_cast<std::uint8_t>(best);
    sample.counts = label < classes;
    if (!sample.counts) return sample;
    sample.loss = std::log(sum) - (target.hit - target.spread) * below_largest(label);
    // Skipped without smoothing, because 0 · (−∞) is NaN.
    for (int j = 0; target.spread > 0.0 && j < classes; ++j) sample.loss -= target.spread * below_largest(j);
    return sample;
  }
};

template <class T>
struct Gradient {
  T* data = nullptr;
  int stride = 0;
  double scale = 0.0;  ///< 1 / global batch
  Target target;

  void write(int i, const Row& row, std::uint8_t label) const {
    T* grad = data + static_cast<std::ptrdiff_t>(i) * stride;
    const bool counts = label < row.classes;
    for (int j = 0; j < row.classes; ++j) {
      const double difference = row.power(j) / row.sum - (j == label ? target.hit : target.spread);
      grad[j] = from_float<T>(counts ? static_cast<float>(difference * scale) : 0.0f);
    }
    for (int j = row.classes; j < stride; ++j) grad[j] = T{};
  }
};

/// Calls `visit(i, row)` for every sample, on all threads, and `add(i, sample)` in sample order on one.
template <class Visit, class Add>
void for_each_sample(const LossShape& shape, const float* logits, const std::uint8_t* labels,
                     const Target& target, Visit visit, Add add) {
  for (int begin = 0; begin < shape.batch; begin += kSamples) {
    const int count = std::min(kSamples, shape.batch - begin);
    Sample samples[kSamples];
    parallel_for(count, [&](std::ptrdiff_t k) {
      const int i = begin + static_cast<int>(k);
      const Row row(logits + static_cast<std::ptrdiff_t>(i) * shape.logit_stride, shape.classes);
      visit(i, row);
      samples[k] = row.against(labels[i], target);
    });
    for (int k = 0; k < count; ++k) add(begin + k, samples[k]);
  }
}

void check(const LossShape& shape, int grad_stride) {
  if (shape.classes < 1 || shape.classes > 255 || shape.logit_stride < shape.classes ||
      grad_stride < shape.classes) {
    throw std::logic_error(concat("loss: rows of ", shape.logit_stride, " logits and ", grad_stride,
                                  " gradients do not fit ", shape.classes, " classes"));
  }
}

engine::Task loss_task(const char* name, const LossShape& shape, const float* logits,
                       const std::uint8_t* labels) {
  const auto batch = static_cast<std::size_t>(shape.batch);
  engine::Task task;
  task.name = name;
  task.reads = {engine::bytes_of(logits, batch * static_cast<std::size_t>(shape.logit_stride)),
                engine::bytes_of(labels, batch)};
  return task;
}

template <class T>
engine::Task plan_train(const engine::TrainBinding& binding, const LossShape& shape, const float* logits,
                        const std::uint8_t* labels, Gradient<T> gradient) {
  check(shape, gradient.stride);
  constexpr std::size_t kFigures = 3;
  static_assert(ControlLayout::loss_sum < kFigures && ControlLayout::correct < kFigures &&
                ControlLayout::samples < kFigures);
  engine::Task task = loss_task("loss", shape, logits, labels);
  task.reads.push_back(engine::bytes_of(binding.control, kFigures));
  task.writes = {engine::bytes_of(binding.control, kFigures),
                 engine::bytes_of(gradient.data, static_cast<std::size_t>(shape.batch) *
                                                     static_cast<std::size_t>(gradient.stride))};
  task.start = [shape, logits, labels, gradient, control = binding.control](engine::Lane&) {
    double loss = 0.0;
    int correct = 0, counted = 0;
    for_each_sample(
        shape, logits, labels, gradient.target,
        [&](int i, const Row& row) { gradient.write(i, row, labels[i]); },
        [&](int i, const Sample& sample) {
          loss += sample.loss;
          correct += sample.predicted == labels[i] ? 1 : 0;
          counted += sample.counts ? 1 : 0;
        });
    control[ControlLayout::loss_sum] += static_cast<float>(loss);
    control[ControlLayout::correct] += static_cast<float>(correct);
    control[ControlLayout::samples] += static_cast<float>(counted);
  };
  return task;
}

}  // namespace

engine::Task plan_train_loss(const engine::TrainBinding& binding, const LossShape& shape, const float* logits,
                             const std::uint8_t* labels, std::byte* grad_logits, int grad_stride,
                             engine::Precision grad_precision) {
  const double scale = 1.0 / static_cast<double>(binding.global_batch);
  const Target target = target_of(binding.label_smoothing, shape.classes);
  if (grad_precision == engine::Precision::bf16) {
    return plan_train(binding, shape, logits, labels,
                      Gradient<bf16>{reinterpret_cast<bf16*>(grad_logits), grad_stride, scale, target});
  }
  return plan_train(binding, shape, logits, labels,
                    Gradient<float>{reinterpret_cast<float*>(grad_logits), grad_stride, scale, target});
}

engine::Task plan_evaluate_loss(const engine::EvaluateBinding& binding, const LossShape& shape,
                                const float* logits, const std::uint8_t* labels) {
  check(shape, shape.classes);
  engine::Task task = loss_task("evaluation loss", shape, logits, labels);
  task.writes = {engine::bytes_of(binding.predictions, static_cast<std::size_t>(shape.batch)),
                 engine::bytes_of(binding.loss_sum, 1)};
  if (binding.logits != nullptr)
    task.writes.push_back(engine::bytes_of(
        binding.logits, static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(shape.classes)));
  task.start = [shape, logits, labels, predictions = binding.predictions, loss_sum = binding.loss_sum,
                kept = binding.logits](engine::Lane&) {
    double loss = 0.0;
    for_each_sample(
        shape, logits, labels, Target{},
        [&](int i, const Row& row) {
          if (kept != nullptr)
            std::copy_n(row.logits, row.classes, kept + static_cast<std::ptrdiff_t>(i) * row.classes);
        },
        [&](int i, const Sample& sample) {
          predictions[i] = sample.predicted;
          loss += sample.loss;
        });
    *loss_sum = static_cast<float>(loss);
  };
  return task;
}

}  // namespace cifar_mpi::cpu
