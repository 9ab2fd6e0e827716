#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cuda/conv.hpp"
#include "cuda/count.hpp"
#include "cuda/device.hpp"
#include "cuda/group.hpp"
#include "cuda/kernels.hpp"
#include "cuda/lane.hpp"
#include "cuda/relu.hpp"
#include "cuda/step_tasks.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::Format;
using engine::ValueFormat;

/// "24x24 "
std::string size_of(const model::NetSpec& net) { return concat(net.input.height, 'x', net.input.width, ' '); }

class CudaKernels final : public engine::Kernels {
 public:
  CudaKernels(const engine::TowerSpec& spec, PlanContext context, ConvChoice choice)
      : context_(std::move(context)),
        shared_{
            spec.batch,
            spec.precision,
            NetKernels(spec.batch, spec.precision, choice, spec.like != nullptr ? size_of(*spec.net) : ""),
            0,
            {}} {}

  std::unique_ptr<engine::Group> plan(const engine::Chain& chain) override {
    return make_group(shared_, plan_group(chain, shared_.batch, shared_.precision));
  }

  /// All values have the same layout, and the loss accepts logits of either type.
  std::unique_ptr<engine::Group> reorder(std::string name, const Extent&, const ValueFormat&,
                                         const ValueFormat&, bool) override {
    throw std::logic_error(concat("cuda: ", name, ": there are no other formats"));
  }

  Task add(std::string name, const Format& format, std::byte* dst, const std::byte* a,
           const std::byte* b) const override {
    return {std::move(name),
            {{a, format.bytes}, {b, format.bytes}},
            {{dst, format.bytes}},
            [=](Lane& lane) { add_values(stream_of(lane), type_of(format), a, b, dst, values_in(format)); },
            {}};
  }

  Task mask(std::string name, const Format& format, const std::byte* value, const std::byte* grad,
            std::byte* dst) const override {
    return {
        std::move(name),
        {{value, format.bytes}, {grad, format.bytes}},
        {{dst, format.bytes}},
        [=](Lane& lane) { relu_mask(stream_of(lane), type_of(format), value, grad, dst, values_in(format)); },
        {}};
  }

  std::optional<Task> count(std::string name, const Extent& extent, const Format& format,
                            const std::byte* value, engine::ValueCounts* counts,
                            engine::Arena& arena) const override {
    const auto rows =
        static_cast<std::uint64_t>(shared_.batch) * static_cast<unsigned>(extent.height * extent.width);
    const auto columns = static_cast<unsigned>(extent.channels);
    const auto pitch = static_cast<unsigned>(static_cast<std::uint64_t>(values_in(format)) / rows);
    return plan_count(std::move(name), type_of(format), {{value, rows * columns, counts, columns, pitch}},
                      arena.take(count_scratch_bytes(1)));
  }

  std::optional<engine::ParamCopy> copy_params(const float* block, std::size_t floats,
                                               engine::Arena& arena) const override {
    if (shared_.type() == ValueType::fp32) return std::nullopt;
    const std::size_t bytes = floats * bytes_per(ValueType::bf16);
    std::byte* const to = arena.take(bytes);
    Task task{
        "round weights",
        {engine::bytes_of(block, floats)},
        {{to, bytes}},
        [=](Lane& lane) { round_to_bf16(stream_of(lane), block, to, static_cast<std::int64_t>(floats)); },
        {},
        true};
    return engine::ParamCopy{to, bytes_per(ValueType::bf16), std::move(task)};
  }

  std::string finalize() override {
    shared_.counters = context_.allocate(static_cast<std::size_t>(shared_.counter_words) * sizeof(unsigned));
    context_.plan(shared_.kernels);
    return concat(library_versions(), ", ", to_string(shared_.precision), "\n", shared_.kernels.text());
  }

 private:
  PlanContext context_;
  SharedPlan shared_;
};

class CudaEnds final : public engine::Ends {
 public:
  CudaEnds(const engine::TowerSpec& spec, const PlanContext& context)
      : batch_(spec.batch),
        classes_(spec.net->classes),
        type_(value_type(spec.precision)),
        image_(activations(spec.batch, spec.net->input, type_)),
        scratch_(context.allocate(sizeof(unsigned) + loss_partials(spec.batch) * sizeof(float))),
        request_word_(context.request_word) {}

  ValueFormat images() const override { return {image_, image_}; }
  ValueFormat logits(const ValueFormat& have) const override { return have; }

  Task control(const engine::TrainBinding& binding) const override {
    return plan_control(binding, binding.requests != nullptr ? request_word_(*binding.requests) : nullptr);
  }
  Task train_input(const engine::TrainBinding& binding, std::byte* x, std::uint8_t* labels) const override {
    return plan_train_input(binding, batch_, type_, x, labels);
  }
  std::optional<Task> keep_images(const std::byte* x, int images, float* dst) const override {
    const auto values = static_cast<std::size_t>(values_in(image_)) / static_cast<std::size_t>(batch_);
    return plan_keep_images(x, type_, static_cast<std::size_t>(images) * values, dst);
  }
  Task train_loss(const engine::TrainBinding& binding, const engine::Logits& logits,
                  const std::uint8_t* labels, std::byte* grad_logits) const override {
    return plan_train_loss(binding, input_of(logits, labels), grad_logits, type_);
  }
  Task compute_time(engine::RankFacts* facts) const override { return plan_compute_time(facts); }
  Task evaluate_input(const engine::EvaluateBinding& binding, std::byte* x,
                      std::uint8_t* labels) const override {
    return plan_evaluate_input(binding, batch_, type_, x, labels);
  }
  Task evaluate_loss(const engine::EvaluateBinding& binding, const engine::Logits& logits,
                     const std::uint8_t* labels) const override {
    return plan_evaluate_loss(binding, input_of(logits, labels));
  }

 private:
  LossInput input_of(const engine::Logits& logits, const std::uint8_t* labels) const {
    const auto columns = static_cast<int>(values_in(logits.format) / batch_);
    auto* const counter = scratch_.as<unsigned>();
    return {batch_, classes_, columns, type_of(logits.format), logits.at, labels, scratch_.as<float>() + 1,
            counter};
  }

  int batch_;
  int classes_;
  ValueType type_;
  Format image_;
  Buffer scratch_;  ///< of the loss: its counter and the partial sums
  std::function<const int*(const std::atomic<int>&)> request_word_;
};

}  // namespace

PlanContext plan_context(Device& device, Ladder& ladder) {
  const auto plan = [&device, &ladder](NetKernels& kernels) {
    if (kernels.begins_ladder()) ladder.begin();
    if (const std::size_t bytes = kernels.library_trial_bytes(); bytes > 0) {
      kernels.plan_library(TrialMemory(device, bytes).trial(), ladder);
    }
    if (const std::size_t bytes = kernels.product_trial_bytes(); bytes > 0) {
      kernels.plan_products(TrialMemory(device, bytes).trial(), ladder);
    }
  };
  return {[&device](std::size_t bytes) { return device.allocate(bytes); }, plan,
          [&device](const std::atomic<int>& request) { return device.link().request_word(&request); }};
}

engine::TowerKernels plan_kernels(const engine::TowerSpec& spec, PlanContext context, ConvChoice choice) {
  if (spec.batch < 1) {
    throw Error(ErrorKind::usage, "a step needs at least 1 sample per rank, found a batch of ", spec.batch);
  }
  auto ends = std::make_unique<CudaEnds>(spec, context);
  return {std::make_unique<CudaKernels>(spec, std::move(context), choice), std::move(ends)};
}

}  // namespace cifar_mpi::cuda
