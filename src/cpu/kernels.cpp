#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/augment.hpp"
#include "cpu/control.hpp"
#include "cpu/copy.hpp"
#include "cpu/count.hpp"
#include "cpu/loss.hpp"
#include "cpu/planning.hpp"
#include "cpu/relu.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Format;
using engine::Task;
using engine::ValueFormat;

/// All kinds of groups; at most one accepts a chain.
constexpr PlannedGroupPtr (*kPlans[])(Planning&, const engine::Chain&) = {plan_conv_group,
                                                                          plan_linear_group,
                                                                          plan_pool_group,
                                                                          plan_lrn_group,
                                                                          plan_relu_group,
                                                                          plan_batch_norm_group,
                                                                          plan_global_avg_pool_group,
                                                                          plan_shortcut_group,
                                                                          plan_add_group,
                                                                          plan_pointwise_group};

class CpuKernels final : public engine::Kernels {
 public:
  CpuKernels(const engine::TowerSpec& spec, int conv_threads)
      : planning_(spec, conv_threads,
                  spec.like != nullptr ? &dynamic_cast<const CpuKernels&>(*spec.like).planning_ : nullptr) {}
  Planning& planning() { return planning_; }

  std::unique_ptr<engine::Group> plan(const engine::Chain& chain) override {
    try {
      for (const auto plan : kPlans) {
        if (PlannedGroupPtr group = plan(planning_, chain)) return group;
      }
    } catch (const dnnl::error& error) {
      throw Error(ErrorKind::usage, "model ", chain.net->name, ": ", dnnl_version_text(),
                  " has no kernel for layer ", chain.operations[0] + 1, " (", chain.operation(0).name,
                  ") on an input of ", to_string(chain.in()), " with batch ", planning_.batch, " (",
                  error.what(), "); change the layer or the batch");
    }
    throw Error(ErrorKind::usage, "model ", chain.net->name, ": the cpu has no kernel for layer ",
                chain.operations[0] + 1, " (", chain.operation(0).name, ")");
  }

  std::unique_ptr<engine::Group> reorder(std::string name, const Extent&, const ValueFormat& from,
                                         const ValueFormat& to, bool wants_grad) override {
    return plan_reorder_group(planning_, name, from, to, wants_grad);
  }

  Task add(std::string name, const Format& format, std::byte* dst, const std::byte* a,
           const std::byte* b) const override {
    return plan_add(std::move(name), planning_.values_in(format), planning_.precision, dst, a, b);
  }

  Task mask(std::string name, const Format& format, const std::byte* value, const std::byte* grad,
            std::byte* dst) const override {
    return plan_relu_mask(name, planning_.values_in(format), planning_.precision, value, grad, dst);
  }

  std::optional<Task> count(std::string name, const Extent& extent, const Format& format,
                            const std::byte* value, engine::ValueCounts* counts,
                            engine::Arena&) const override {
    const Desc& desc = planning_.desc(format);
    return plan_count(std::move(name), {{value, data_type_of(desc),
                                         values_of(planning_.dnnl, desc, planning_.batch, extent), counts}});
  }

  std::string finalize() override {
    const int threads = planning_.threads;
    return concat(dnnl_version_text(), ", ", counted(threads, "thread"), ", ", to_string(planning_.precision),
                  "\n", planning_.text);
  }

 private:
  Planning planning_;
};

class CpuEnds final : public engine::Ends {
 public:
  CpuEnds(Planning& planning, const model::NetSpec& net)
      : batch_(planning.batch),
        input_(net.input),
        precision_(planning.precision),
        loss_{batch_, net.classes, net.classes} {
    const Extent logits = net.extent(net.logits());
    images_ = planning.formats(activations(batch_, net.input, planning.type, dnnl::memory::format_tag::nchw));
    logits_ = planning.formats(planning.nhwc(logits, dnnl::memory::data_type::f32), planning.nhwc(logits));
  }

  ValueFormat images() const override { return images_; }
  ValueFormat logits(const ValueFormat&) const override { return logits_; }

  Task control(const engine::TrainBinding& binding) const override { return plan_control(binding); }
  Task train_input(const engine::TrainBinding& binding, std::byte* x, std::uint8_t* labels) const override {
    return plan_train_input(binding, batch_, precision_, x, labels);
  }
  std::optional<Task> keep_images(const std::byte* x, int images, float* dst) const override {
    return plan_keep_images(x, precision_, input_, images, dst);
  }
  Task train_loss(const engine::TrainBinding& binding, const engine::Logits& logits,
                  const std::uint8_t* labels, std::byte* grad_logits) const override {
    return plan_train_loss(binding, loss_, reinterpret_cast<const float*>(logits.at), labels, grad_logits,
                           loss_.classes, precision_);
  }
  Task compute_time(engine::RankFacts* facts) const override { return plan_compute_time(facts); }
  Task evaluate_input(const engine::EvaluateBinding& binding, std::byte* x,
                      std::uint8_t* labels) const override {
    return plan_evaluate_input(binding, batch_, precision_, x, labels);
  }
  Task evaluate_loss(const engine::EvaluateBinding& binding, const engine::Logits& logits,
                     const std::uint8_t* labels) const override {
    return plan_evaluate_loss(binding, loss_, reinterpret_cast<const float*>(logits.at), labels);
  }

 private:
  int batch_;
  Extent input_;
  engine::Precision precision_;
  LossShape loss_;
  ValueFormat images_, logits_;
};

}  // namespace

engine::TowerKernels plan_kernels(const engine::TowerSpec& spec, int conv_threads) {
  if (spec.batch < 1) {
    throw Error(ErrorKind::usage, "a step needs at least 1 sample per rank, found a batch of ", spec.batch);
  }
  auto kernels = std::make_unique<CpuKernels>(spec, conv_threads);
  auto ends = std::make_unique<CpuEnds>(kernels->planning(), *spec.net);
  return {std::move(kernels), std::move(ends)};
}

}  // namespace cifar_mpi::cpu
