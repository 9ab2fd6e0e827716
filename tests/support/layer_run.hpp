#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cifar_mpi/base/bf16.hpp"
#include "support/backend_wrapper.hpp"
#include "support/network_run.hpp"

/// Runs layers alone on any backend, through its Kernels: the first operation of the network, "source",
/// outputs chosen values and keeps their gradient; the last, "sink", keeps the value and returns a chosen
/// gradient. The layers between are lowered as in a run.
namespace cifar_mpi::test {

/// Memory of the device, in the precision of the run except for logits.
struct LayerMemory {
  Buffer x, grad_x, y, grad_y;
};

/// The layout of the source's value: images, or the input of a 1x1 or 3x3 convolution, which may use blocks
/// of channels.
enum class SourceFormat : std::uint8_t { images, of_1x1, of_3x3 };

class SourceGroup final : public engine::Group {
 public:
  /// `reorder` from images to the source's output; null if that is images.
  SourceGroup(engine::Backend& backend, const LayerMemory& memory, const engine::ValueFormat& images,
              std::size_t weights, std::unique_ptr<engine::Group> reorder)
      : backend_(backend), memory_(memory), reorder_(std::move(reorder)) {
    contract_.name = "source";
    contract_.src = {images};
    contract_.dst = reorder_ ? reorder_->contract().dst : images;
    contract_.masters = {weights};
  }
  const engine::Contract& contract() const override { return contract_; }
  engine::GroupTasks tasks(const engine::Operands& given, engine::Arena& arena) const override {
    engine::Operands operands = given;
    operands.src = {memory_.x.data()};
    operands.grad_src = {given.grad_dst != nullptr ? memory_.grad_x.data() : nullptr};
    if (reorder_) return reorder_->tasks(operands, arena);
    engine::GroupTasks tasks;
    tasks.forward.push_back(
        backend_.copy_task("source", {{operands.dst, memory_.x.data(), memory_.x.size()}}));
    if (operands.grad_dst != nullptr) {
      tasks.backward.push_back(backend_.copy_task(
          "source gradient", {{memory_.grad_x.data(), operands.grad_dst, memory_.x.size()}}));
    }
    return tasks;
  }

 private:
  engine::Backend& backend_;
  const LayerMemory& memory_;
  std::unique_ptr<engine::Group> reorder_;
  engine::Contract contract_;
};

/// Replaces the Linear layer `real` and has its formats.
class SinkGroup final : public engine::Group {
 public:
  SinkGroup(engine::Backend& backend, LayerMemory& memory, std::unique_ptr<engine::Group> real)
      : backend_(backend), memory_(memory), real_(std::move(real)), contract_(real_->contract()) {
    contract_.mask_src = engine::ReluMask::none;
    contract_.grad_on_src = false;
    memory_.y = backend.allocate(contract_.src[0].value.bytes);
    memory_.grad_y = backend.allocate(contract_.src[0].grad.bytes);
  }
  const engine::Contract& contract() const override { return contract_; }
  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena&) const override {
    engine::GroupTasks tasks;
    tasks.forward.push_back(
        backend_.copy_task("sink", {{memory_.y.data(), operands.src[0], memory_.y.size()}}));
    if (operands.grad_src[0] != nullptr) {
      tasks.backward.push_back(backend_.copy_task(
          "sink gradient", {{operands.grad_src[0], memory_.grad_y.data(), memory_.grad_y.size()}}));
    }
    return tasks;
  }
  void to_logical(std::size_t part, std::span<const float> from, std::span<float> to) const override {
    real_->to_logical(part, from, to);
  }
  void from_logical(std::size_t part, std::span<const float> from, std::span<float> to) const override {
    real_->from_logical(part, from, to);
  }

 private:
  engine::Backend& backend_;
  LayerMemory& memory_;
  std::unique_ptr<engine::Group> real_;
  engine::Contract contract_;
};

class LayerKernels final : public engine::Kernels {
 public:
  LayerKernels(std::unique_ptr<engine::Kernels> real, engine::Backend& backend, LayerMemory& memory,
               SourceFormat format)
      : real_(std::move(real)), backend_(backend), memory_(memory), format_(format) {}

  std::unique_ptr<engine::Group> plan(const engine::Chain& chain) override {
    const std::string& name = chain.operation(0).name;
    if (name != "source" && name != "sink") return real_->plan(chain);
    engine::Chain alone = chain;
    alone.operations.resize(1);
    alone.wants_grad = {true};
    if (name == "sink") return std::make_unique<SinkGroup>(backend_, memory_, real_->plan(alone));
    const engine::ValueFormat& images = chain.inputs[0];
    memory_.x = backend_.allocate(images.value.bytes);
    memory_.grad_x = backend_.allocate(images.grad.bytes);
    std::unique_ptr<engine::Group> reorder;
    if (format_ != SourceFormat::images) {
      const engine::ValueFormat wanted = real_->plan(alone)->contract().src[0];
      if (!(wanted.value == images.value))
        reorder = real_->reorder("source", chain.in(), images, wanted, true);
    }
    const auto weights = static_cast<std::size_t>(chain.operation(0).params[0].shape.count());
    return std::make_unique<SourceGroup>(backend_, memory_, images, weights, std::move(reorder));
  }
  std::unique_ptr<engine::Group> reorder(std::string name, const Extent& extent,
                                         const engine::ValueFormat& from, const engine::ValueFormat& to,
                                         bool wants_grad) override {
    return real_->reorder(std::move(name), extent, from, to, wants_grad);
  }
  engine::Task add(std::string name, const engine::Format& format, std::byte* dst, const std::byte* a,
                   const std::byte* b) const override {
    return real_->add(std::move(name), format, dst, a, b);
  }
  engine::Task mask(std::string name, const engine::Format& format, const std::byte* value,
                    const std::byte* grad, std::byte* dst) const override {
    return real_->mask(std::move(name), format, value, grad, dst);
  }
  std::optional<engine::ParamCopy> copy_params(const float* block, std::size_t floats,
                                               engine::Arena& arena) const override {
    return real_->copy_params(block, floats, arena);
  }
  std::string finalize() override { return real_->finalize(); }

 private:
  std::unique_ptr<engine::Kernels> real_;
  engine::Backend& backend_;
  LayerMemory& memory_;
  SourceFormat format_;
};

/// No images are read and no loss is computed; logits that no sink reads are kept instead.
class LayerEnds final : public engine::Ends {
 public:
  LayerEnds(std::unique_ptr<engine::Ends> real, engine::Backend& backend, LayerMemory& memory)
      : real_(std::move(real)), backend_(backend), memory_(memory) {}
  engine::ValueFormat images() const override { return real_->images(); }
  engine::ValueFormat logits(const engine::ValueFormat& have) const override {
    const engine::ValueFormat format = real_->logits(have);
    if (memory_.y.size() == 0) {
      memory_.y = backend_.allocate(format.value.bytes);
      memory_.grad_y = backend_.allocate(format.grad.bytes);
      keeps_logits_ = true;
    }
    return format;
  }
  engine::Task control(const engine::TrainBinding& binding) const override { return real_->control(binding); }
  engine::Task train_input(const engine::TrainBinding&, std::byte*, std::uint8_t*) const override {
    return nothing();
  }
  engine::Task train_loss(const engine::TrainBinding&, const engine::Logits& logits, const std::uint8_t*,
                          std::byte* grad_logits) const override {
    if (!keeps_logits_) return nothing();
    return backend_.copy_task("logits", {{memory_.y.data(), logits.at, memory_.y.size()},
                                         {grad_logits, memory_.grad_y.data(), memory_.grad_y.size()}});
  }
  engine::Task compute_time(engine::RankFacts* facts) const override { return real_->compute_time(facts); }
  engine::Task evaluate_input(const engine::EvaluateBinding&, std::byte*, std::uint8_t*) const override {
    return nothing();
  }
  engine::Task evaluate_loss(const engine::EvaluateBinding&, const engine::Logits& logits,
                             const std::uint8_t*) const override {
    if (!keeps_logits_) return nothing();
    return backend_.copy_task("logits", {{memory_.y.data(), logits.at, memory_.y.size()}});
  }

 private:
  static engine::Task nothing() {
    return {"nothing", {}, {}, [](engine::Lane&) {}, {}};
  }

  std::unique_ptr<engine::Ends> real_;
  engine::Backend& backend_;
  LayerMemory& memory_;
  mutable bool keeps_logits_ = false;
};

/// Plans networks in this way, one at a time.
class LayerBackend final : public BackendWrapper {
 public:
  explicit LayerBackend(std::unique_ptr<engine::Backend> real) : BackendWrapper(std::move(real)) {}
  engine::TowerKernels plan(const engine::TowerSpec& spec) override {
    engine::TowerKernels real = BackendWrapper::plan(spec);
    memory = {};
    return {std::make_unique<LayerKernels>(std::move(real.kernels), *this, memory, format),
            std::make_unique<LayerEnds>(std::move(real.ends), *this, memory)};
  }
  SourceFormat format = SourceFormat::images;
  LayerMemory memory;
};

}  // namespace cifar_mpi::test
