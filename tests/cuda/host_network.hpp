#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cifar_mpi/lower/tower.hpp"
#include "cuda/host_group.hpp"
#include "cuda/loss_math.hpp"

/// A network of planned groups on the host.
namespace cifar_mpi::cuda::testing {

class HostKernels final : public engine::Kernels {
 public:
  explicit HostKernels(int batch) : batch_(batch) {}

  std::unique_ptr<engine::Group> make(GroupPlan plan) {
    auto group = std::make_unique<HostGroup>(std::move(plan), batch_);
    groups.push_back(group.get());
    return group;
  }

  std::unique_ptr<engine::Group> plan(const engine::Chain& chain) override {
    GroupPlan plan = plan_group(chain, batch_, engine::Precision::fp32);
    const std::vector<GroupPlan> tail = std::exchange(plan.tail, {});
    auto group = make(std::move(plan));
    return tail.empty() ? std::move(group)
                        : join_tail(std::move(group), make(tail.front()), [] { return false; });
  }
  std::unique_ptr<engine::Group> reorder(std::string, const Extent&, const engine::ValueFormat&,
                                         const engine::ValueFormat&, bool) override {
    throw std::logic_error("there are no other formats");
  }
  engine::Task add(std::string name, const engine::Format& format, std::byte* dst, const std::byte* a,
                   const std::byte* b) const override {
    return elementwise(std::move(name), format, dst, a, b, [](double x, double y) { return x + y; });
  }
  engine::Task mask(std::string name, const engine::Format& format, const std::byte* value,
                    const std::byte* grad, std::byte* dst) const override {
    return elementwise(std::move(name), format, dst, value, grad,
                       [](double v, double g) { return v > 0.0 ? g : 0.0; });
  }
  std::string finalize() override { return ""; }

  std::vector<const HostGroup*> groups;  ///< as planned; the tower owns them

 private:
  template <class Formula>
  static engine::Task elementwise(std::string name, const engine::Format& format, std::byte* dst,
                                  const std::byte* a, const std::byte* b, Formula formula) {
    const Bytes left{a, format.bytes}, right{b, format.bytes};
    return {std::move(name),
            {left, right},
            {{dst, format.bytes}},
            [=](engine::Lane&) {
              Array result = read_array(left);
              const Array other = read_array(right);
              for (std::size_t i = 0; i < result.size(); ++i) result[i] = formula(result[i], other[i]);
              write_array(result, dst);
            },
            {}};
  }

  int batch_;
};

/// A batch of images and its labels are given; the loss is by the kernels' formula.
class HostEnds final : public engine::Ends {
 public:
  HostEnds(Array images, std::vector<std::uint8_t> labels, int classes, double& loss_sum)
      : images_(std::move(images)), labels_(std::move(labels)), classes_(classes), loss_sum_(loss_sum) {}

  engine::ValueFormat images() const override {
    const engine::Format format{static_cast<int>(ValueType::fp32), images_.size() * sizeof(float)};
    return {format, format};
  }
  engine::ValueFormat logits(const engine::ValueFormat& have) const override { return have; }
  engine::Task control(const engine::TrainBinding&) const override {
    return {"control", {}, {}, [](engine::Lane&) {}, {}};
  }
  engine::Task compute_time(engine::RankFacts*) const override { throw std::logic_error("no facts"); }
  engine::Task train_input(const engine::TrainBinding&, std::byte* x, std::uint8_t* labels) const override {
    return {"input",
            {},
            {{x, images_.size() * sizeof(float)}, engine::bytes_of(labels, labels_.size())},
            [this, x, labels](engine::Lane&) {
              write_array(images_, x);
              std::copy(labels_.begin(), labels_.end(), labels);
            },
            {}};
  }
  engine::Task train_loss(const engine::TrainBinding& binding, const engine::Logits& logits,
                          const std::uint8_t* labels, std::byte* grad_logits) const override {
    const Bytes values{logits.at, logits.format.bytes};
    return {"loss",
            {values, engine::bytes_of(labels, labels_.size())},
            {{grad_logits, logits.format.bytes}},
            [=, this, scale = 1.0 / static_cast<double>(binding.global_batch)](engine::Lane&) {
              write_array(grad_of(read_array(values), labels, scale), grad_logits);
            },
            {}};
  }
  engine::Task evaluate_input(const engine::EvaluateBinding&, std::byte*, std::uint8_t*) const override {
    throw std::logic_error("trains only");
  }
  engine::Task evaluate_loss(const engine::EvaluateBinding&, const engine::Logits&,
                             const std::uint8_t*) const override {
    throw std::logic_error("trains only");
  }

 private:
  Array grad_of(const Array& logits, const std::uint8_t* labels, double scale) const {
    Array grad(logits.size());
    loss_sum_ = 0.0;
    for (std::size_t i = 0; i < labels_.size(); ++i) {
      const std::size_t row = i * static_cast<std::size_t>(classes_);
      const SampleLoss sample = sample_loss(
          classes_, labels[i], LossRule{scale},
          [&](int j) { return static_cast<float>(logits[row + static_cast<std::size_t>(j)]); },
          [&](int j, float g) { grad[row + static_cast<std::size_t>(j)] = static_cast<double>(g); },
          HostMath{});
      loss_sum_ += static_cast<double>(sample.loss);
    }
    return grad;
  }

  Array images_;
  std::vector<std::uint8_t> labels_;
  int classes_;
  double& loss_sum_;
};

}  // namespace cifar_mpi::cuda::testing
