#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/lower/tower.hpp"
#include "reference/reference.hpp"

/// One network with everything a training step and an evaluation need, and the reference's view of the same.
namespace cifar_mpi::cpu {

struct RunSpec {
  model::NetSpec net;
  int batch = 4;
  engine::Precision precision = engine::Precision::fp32;
  int threads = 1;
  engine::ConvMethod conv = engine::ConvMethod::automatic;
  float weight_scale = 1.0f;  ///< of the random parameters, times 1/sqrt(inputs of the layer)
};

/// A layer adds about eps·sqrt(k) of the size of its result, k the terms of its longest sum (rounding errors
/// of random sign). A gradient has passed every layer forward and backward; errors of random sign add up as
/// the square root of their number.
inline double relative_tolerance(const model::NetSpec& net, double eps) {
  double longest = 1.0;
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    const Extent in = net.input_of(i);
    if (const auto* const conv = std::get_if<model::Conv2d>(&net.operations[i].layer)) {
      longest = std::max(longest, 1.0 * conv->kernel * conv->kernel * in.channels);
    } else if (std::holds_alternative<model::Linear>(net.operations[i].layer)) {
      longest = std::max(longest, 1.0 * in.count());
    } else if (std::holds_alternative<model::GlobalAvgPool>(net.operations[i].layer)) {
      longest = std::max(longest, 1.0 * in.height * in.width);
    }
  }
  return std::sqrt(2.0 * static_cast<double>(net.operations.size())) * eps * std::sqrt(longest);
}

inline double relative_distance(const reference::Array& found, const reference::Array& wanted) {
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    difference += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  return std::sqrt(difference / std::max(size, 1e-300));
}

class NetworkRun {
 public:
  explicit NetworkRun(RunSpec asked)
      : spec(std::move(asked)),
        table(model::make_param_table(spec.net)),
        backend(make_backend({spec.threads, false})),
        tower(std::make_unique<lower::Tower>(
            *backend, engine::TowerSpec{&spec.net, &table, spec.batch, spec.precision, spec.conv})),
        arena([this](std::size_t bytes) { return backend->allocate(bytes); }),
        params(backend->allocate(tower->layout().floats * sizeof(float))),
        reduced(backend->allocate((control_layout.floats() + tower->layout().floats) * sizeof(float))) {
    fill_images();
    fill_params();
  }

  float* control() const { return reduced.as<float>(); }
  float* grads() const { return control() + control_layout.floats(); }

  engine::TrainBinding train_binding() {
    engine::TrainBinding binding;
    binding.params = params.as<float>();
    binding.grads = grads();
    binding.control = control();
    binding.control_layout = control_layout;
    binding.step = &step;
    binding.data = view();
    binding.order = order();
    binding.augment = augment();
    binding.global_batch = global_batch();
    return binding;
  }

  engine::EvaluateBinding evaluate_binding() {
    predictions.resize(static_cast<std::size_t>(spec.batch));
    return {params.as<float>(), view(), augment(), &cursor, predictions.data(), &loss_sum};
  }

  engine::StepProgram train_program() {
    arena.rewind();
    return finalized("train", tower->train_tasks(train_binding(), arena));
  }
  engine::StepProgram evaluate_program() {
    arena.rewind();
    return finalized("evaluate", tower->evaluate_tasks(evaluate_binding(), arena));
  }

  /// Everything a task of a program may touch.
  std::vector<engine::Bytes> regions() const {
    std::vector<engine::Bytes> all = arena.regions();
    all.push_back({params.data(), params.size()});
    all.push_back({reduced.data(), reduced.size()});
    for (const std::vector<std::uint8_t>* bytes : {&images, &labels, &predictions}) {
      all.push_back(engine::bytes_of(bytes->data(), bytes->size()));
    }
    for (const std::uint64_t* counter : {&step, &cursor}) all.push_back(engine::bytes_of(counter, 1));
    all.push_back(engine::bytes_of(&loss_sum, 1));
    return all;
  }

  void run(engine::StepProgram program, engine::RunnerKind kind = engine::RunnerKind::serial) {
    const auto runner = backend->runner(std::move(program), kind, regions());
    runner->replay();
    runner->finish();
  }

  /// A block in logical order, by ParamTable index.
  reference::Params logical(const float* block) const {
    reference::Params arrays;
    for (std::size_t p = 0; p < table.size(); ++p) {
      const auto& entry = tower->layout().entries[p];
      std::vector<float> values(static_cast<std::size_t>(table[p].shape.count()));
      tower->to_logical(p, {block + entry.offset, entry.floats}, values);
      arrays.emplace_back(values.begin(), values.end());
    }
    return arrays;
  }

  /// The batch's statistics of running parameter `p` as the last step left them.
  reference::Array statistics(std::size_t p) const {
    const engine::ParamLayout& layout = tower->layout();
    const auto& entry = layout.entries[p];
    std::vector<float> values(static_cast<std::size_t>(table[p].shape.count()));
    tower->to_logical(
        p, {control() + control_layout.statistics() + (entry.offset - layout.running_begin()), entry.floats},
        values);
    return {values.begin(), values.end()};
  }

  /// Images [first, first + batch) in file order, or of the training step, as the network sees them; NHWC.
  reference::Array input(bool training) const {
    reference::Array x;
    std::vector<float> image(pixels());
    const Extent in = spec.net.input;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(spec.batch); ++i) {
      const std::size_t sample = training ? order().at(step, i).local : i;
      data::augment_reference(augment(), {0, 0, false, 1.0f}, 0.0,
                              {images.data() + sample * static_cast<std::size_t>(in.count()), pixels()},
                              image);
      x.insert(x.end(), image.begin(), image.end());
    }
    return x;
  }
  std::vector<std::uint8_t> batch_labels() const {
    std::vector<std::uint8_t> result;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(spec.batch); ++i) {
      result.push_back(labels[order().at(step, i).local]);
    }
    return result;
  }
  reference::LossAndGradients wanted(const reference::Rounding& round = reference::as_it_is) const {
    return reference::loss_and_gradients(spec.net, table, logical(params.as<float>()), input(true),
                                         batch_labels(), spec.batch, static_cast<double>(global_batch()),
                                         round);
  }
  std::uint64_t global_batch() const { return static_cast<std::uint64_t>(2 * spec.batch); }

  RunSpec spec;
  model::ParamTable table;
  std::unique_ptr<engine::Backend> backend;
  std::unique_ptr<lower::Tower> tower;
  engine::Arena arena;
  engine::ControlLayout control_layout{1, tower->layout().running_floats};
  Buffer params;
  Buffer reduced;
  std::vector<std::uint8_t> images;
  std::vector<std::uint8_t> labels;
  std::vector<std::uint8_t> predictions;
  std::uint64_t step = 3;
  std::uint64_t cursor = 0;
  float loss_sum = 0.0f;

 private:
  std::size_t pixels() const { return static_cast<std::size_t>(spec.net.input.count()); }
  std::uint64_t count() const { return static_cast<std::uint64_t>(3 * spec.batch + 1); }
  engine::DataView view() const { return {images.data(), labels.data(), count()}; }
  data::SampleOrder order() const { return {data::Shuffle::shard, 5, count(), 0, 1, spec.batch}; }
  data::AugmentSpec augment() const {
    data::AugmentSpec augment;
    augment.kind = data::Augment::none;
    augment.source = spec.net.input;
    augment.crop_height = spec.net.input.height;
    augment.crop_width = spec.net.input.width;
    return augment;
  }

  void fill_images() {
    for (std::size_t i = 0; i < count() * pixels(); ++i) {
      images.push_back(static_cast<std::uint8_t>(random4(11, RandomPurpose::synthetic, i, 0)[0]));
    }
    for (std::size_t i = 0; i < count(); ++i) {
      const auto classes = static_cast<std::uint32_t>(spec.net.classes);
      labels.push_back(
          static_cast<std::uint8_t>(uniform_below(random4(12, RandomPurpose::synthetic, i, 0)[0], classes)));
    }
  }

  void fill_params() {
    for (std::size_t p = 0; p < table.size(); ++p) {
      const Shape& shape = table[p].shape;
      const std::int64_t inputs = shape.rank() == 1 ? 16 : shape.count() / shape[shape.rank() - 1];
      const float scale = spec.weight_scale / std::sqrt(static_cast<float>(inputs));
      std::vector<float> values(static_cast<std::size_t>(shape.count()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = scale * truncated_normal(21, static_cast<std::uint32_t>(p), i);
        if (table[p].part == model::ParamPart::scale) values[i] += 1.0f;
        if (table[p].part == model::ParamPart::variance) values[i] = 0.5f + std::abs(values[i]);
      }
      const auto& entry = tower->layout().entries[p];
      tower->from_logical(p, values, {params.as<float>() + entry.offset, entry.floats});
    }
  }

  static engine::StepProgram finalized(std::string name, std::vector<engine::Task> tasks) {
    engine::StepProgram program(std::move(name));
    for (engine::Task& task : tasks) program.run(engine::kCompute, std::move(task));
    program.finalize();
    return program;
  }
};

}  // namespace cifar_mpi::cpu
