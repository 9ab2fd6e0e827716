#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "support/layer_run.hpp"
#include "support/layer_table.hpp"

/// Checks the layers of the table against the reference.
namespace cifar_mpi::test {

inline reference::Array draw(const Terms& c, std::size_t count, std::uint32_t salt, bool gradient) {
  reference::Array all(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = random4(salt, RandomPurpose::synthetic, i, 0)[0];
    const double lattice = (static_cast<int>(uniform_below(bits, 129)) - 64) / 64.0;
    const double noise = 2.0 * static_cast<double>(uniform01(bits)) - 1.0;
    switch (c.values) {
      case Values::lattice:
        all[i] = lattice;
        break;
      case Values::steps:
        all[i] = gradient ? std::trunc(lattice * 7.0) : std::round(lattice * 2.0);
        break;
      case Values::nan:
        all[i] = gradient ? std::trunc(lattice * 7.0) : i % 37 == 5 ? NAN : lattice;
        break;
      case Values::noise:
        all[i] = gradient ? noise : noise + c.middle;
        break;
    }
  }
  return all;
}

/// One case on one backend.
class LayerRun : public NetworkRun {
 public:
  LayerRun(LayerBackend& on, const LayerCase& asked, engine::Precision precision)
      : NetworkRun(on, {.net = network_of(asked, on.format == SourceFormat::of_3x3 ? 3 : 1),
                        .batch = asked.batch,
                        .precision = precision,
                        .conv = engine::ConvMethod::direct,
                        .draws = false}),
        c(asked),
        memory_(on.memory),
        planes_(on.description().starts_with("cpu")) {
    const std::size_t from = c.terms.logits ? 1 : 2;
    output = spec.net.operations[spec.net.operations.size() - from].inputs[0];
    if (c.terms.logits) output = spec.net.logits();
    x = held(draw(c.terms, values_in(c.in), 1, false));
    grad_y = held(draw(c.terms, values_in(spec.net.extent(output)), 2, true));
    put(memory_.x, x, c.in, true);
    put(memory_.grad_y, grad_y, spec.net.extent(output), false);
    draw_layer_params();
  }

  /// Without a source the layers read the images.
  static model::NetSpec network_of(const LayerCase& c, int source_kernel) {
    const bool logits = c.terms.logits;
    model::NetBuilder net(c.text(), c.in, logits ? std::get<model::Linear>(c.layers.back()).outputs : 2);
    const model::Conv2d source{.name = "source",
                               .out_channels = c.in.channels,
                               .kernel = std::max(1, source_kernel),
                               .with_bias = false,
                               .frozen = c.terms.first};
    const model::Value first = source_kernel > 0 ? net.conv(net.image(), source) : net.image();
    model::Value value = first;
    for (const model::Layer& layer : c.layers) {
      const bool sum = std::holds_alternative<model::Add>(layer);
      value = net.append(layer, sum ? std::vector{value, first} : std::vector{value});
    }
    return net.softmax_cross_entropy(logits ? value : net.linear(value, {.name = "sink", .outputs = 2}));
  }

  engine::StepProgram training() {
    arena.rewind();
    engine::TrainBinding binding = train_binding();
    binding.statistics_share = kShare;
    if (!c.terms.synced) return program_of("layers", tower->train_tasks(binding, arena));
    rank_sums_ = backend.allocate(tower->layout().running_floats * sizeof(float));
    binding.rank_sums = {rank_sums_.as<float>(), 2};
    std::vector<engine::Task> tasks = tower->train_tasks(binding, arena);
    for (engine::Task& task : tasks) {
      if (task.kind == engine::TaskKind::collective) task = doubling(task);
    }
    return program_of("layers", std::move(tasks));
  }

  reference::Array held(reference::Array values) const {
    for (double& value : values) {
      const auto single = static_cast<float>(value);
      value = spec.precision == engine::Precision::bf16 ? to_float(to_bf16(single)) : single;
    }
    return values;
  }
  reference::Array y() const { return get(memory_.y, spec.net.extent(output), false); }
  reference::Array grad_x() const { return get(memory_.grad_x, c.in, true); }

  static constexpr float kShare = 0.25f;  ///< of the statistics
  LayerCase c;
  model::Value output;
  reference::Array x, grad_y;

 protected:
  std::vector<engine::Bytes> regions() const override {
    std::vector<engine::Bytes> all = NetworkRun::regions();
    for (const Buffer* buffer : {&memory_.x, &memory_.grad_x, &memory_.y, &memory_.grad_y}) {
      all.push_back({buffer->data(), buffer->size()});
    }
    all.push_back({rank_sums_.data(), rank_sums_.size()});
    return all;
  }

 private:
  /// The sum over two ranks with the same values.
  engine::Task doubling(const engine::Task& sum) {
    auto* const values = rank_sums_.as<float>();
    EXPECT_EQ(sum.writes.front().begin, rank_sums_.data());
    EXPECT_LE(sum.writes.front().size, rank_sums_.size());
    return backend.sum_task(sum.name, {values, values, values, sum.writes.front().size / sizeof(float)});
  }

  std::size_t values_in(const Extent& extent) const {
    return static_cast<std::size_t>(c.batch) * static_cast<std::size_t>(extent.count());
  }

  /// The layout of values: NHWC, with the channels of logits padded on a GPU; images on a CPU NCHW.
  struct Layout {
    std::size_t bytes_per_value, row;
    bool planes;
    std::size_t place(std::size_t i, const Extent& extent) const {
      const auto channels = static_cast<std::size_t>(extent.channels),
                 pixels = static_cast<std::size_t>(extent.height) * static_cast<std::size_t>(extent.width);
      const std::size_t channel = i % channels, pixel = i / channels;
      if (!planes) return pixel * row + channel;
      return (pixel / pixels * channels + channel) * pixels + pixel % pixels;
    }
  };
  Layout layout_of(const Buffer& buffer, const Extent& extent, bool image) const {
    const auto channels = static_cast<std::size_t>(extent.channels), rows = values_in(extent) / channels;
    std::size_t bytes = spec.precision == engine::Precision::bf16 ? 2 : 4;
    if (c.terms.logits && !image && buffer.size() >= rows * channels * 4) bytes = 4;
    return {bytes, buffer.size() / rows / bytes, image && planes_};
  }
  void put(const Buffer& to, const reference::Array& values, const Extent& extent, bool image) {
    const Layout layout = layout_of(to, extent, image);
    std::vector<float> wide(to.size() / layout.bytes_per_value);
    for (std::size_t i = 0; i < values.size(); ++i)
      wide[layout.place(i, extent)] = static_cast<float>(values[i]);
    if (layout.bytes_per_value == 4) return write(to, wide);
    std::vector<bf16> narrow;
    for (const float value : wide) narrow.push_back(to_bf16(value));
    write(to, narrow);
  }
  reference::Array get(const Buffer& from, const Extent& extent, bool image) const {
    const Layout layout = layout_of(from, extent, image);
    std::vector<float> wide;
    if (layout.bytes_per_value == 4) {
      wide = read<float>(from);
    } else {
      for (const bf16 value : read<bf16>(from)) wide.push_back(to_float(value));
    }
    reference::Array values(values_in(extent));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(wide[layout.place(i, extent)]);
    return values;
  }

  /// The source's operations do not count.
  void draw_layer_params() {
    std::vector<float> block(tower->layout().floats);
    Terms how = c.terms;
    if (how.values != Values::noise) how.values = Values::lattice;
    for (std::size_t p = 0; p < table.size(); ++p) {
      if (table[p].operation == 0) continue;
      how.middle = table[p].part == model::ParamPart::scale      ? 1.5
                   : table[p].part == model::ParamPart::variance ? 2.0
                                                                 : 0.0;
      const reference::Array values = draw(how, static_cast<std::size_t>(table[p].shape.count()),
                                           10 + static_cast<std::uint32_t>(p), false);
      const auto& entry = tower->layout().entries[p];
      tower->from_logical(p, std::vector<float>(values.begin(), values.end()),
                          {block.data() + entry.offset, entry.floats});
    }
    set_params(block);
  }

  LayerMemory& memory_;
  Buffer rank_sums_;
  bool planes_;
};

/// NaN as a number, so that it equals itself.
inline reference::Array marked(reference::Array values) {
  for (double& value : values) value = std::isnan(value) ? 1e30 : value;
  return values;
}

/// Runs a training step and an evaluation of the case and compares all results. `gpu`: with its library's tolerances.
inline void expect_reference(LayerBackend& on, const LayerCase& c, engine::Precision precision, bool gpu) {
  if (c.terms.fp32_alone && precision != engine::Precision::fp32) return;
  LayerRun run(on, c, precision);
  run.run(run.training(), engine::RunnerKind::audit, 2);  // the second starts from the state of the first
  const bool by_library = gpu && precision != engine::Precision::fp32;
  const double eps = precision == engine::Precision::bf16   ? 0x1.0p-9
                     : precision == engine::Precision::tf32 ? 0x1.0p-11
                                                            : 0x1.0p-24;
  const auto round = [&](reference::Array values) { return run.held(std::move(values)); };
  const auto compare = [&](const reference::Array& found, const reference::Array& wanted, double units,
                           const std::string& what) {
    const bool shorter = precision == engine::Precision::bf16;
    double tolerance = units * 0x1.0p-24 + (units > 0.0 && shorter ? c.terms.short_units * eps : 0.0);
    if (by_library) tolerance += c.terms.library_units * eps;
    if (tolerance == 0.0) return expect_equal(marked(found), marked(wanted), what);
    EXPECT_LE(reference::relative_distance(marked(found), marked(wanted)), tolerance) << what;
  };
  const reference::Params drawn = run.logical(run.params()), gradients = run.gradients();
  const model::NetSpec net = LayerRun::network_of(c, 0);
  const model::ParamTable table = model::make_param_table(net);
  reference::Params params(table.size());
  std::vector<std::size_t> place(table.size());  // in the run's table, which also has the source
  for (std::size_t p = 0; p < table.size(); ++p) {
    while (run.table[place[p]].name != table[p].name) ++place[p];
    const bool rounds = table[p].part == model::ParamPart::weights;
    params[p] = rounds ? run.held(drawn[place[p]]) : drawn[place[p]];
  }
  const model::Value output{run.output.id - 1};
  const double grad_units = c.terms.grad_units > 0.0 ? c.terms.grad_units : c.terms.fp32_units;

  // The CPU adds and applies a SiLU in the pass that normalizes.
  const auto normalized = gpu ? reference::Normalized::rounded : reference::Normalized::exact;
  // The gradient between the layers is rounded; a few values round the other way than in the reference.
  const bool rounds_between = precision == engine::Precision::bf16 && c.layers.size() == 2 &&
                              std::holds_alternative<model::BatchNorm>(c.layers[0]) &&
                              std::holds_alternative<model::Pointwise>(c.layers[1]);
  const auto activations =
      reference::forward(net, params, run.x, c.batch, round, reference::Statistics::of_batch, normalized);
  compare(run.y(), activations[output.id - 1], c.terms.fp32_units, "output");
  reference::Gradients wanted =
      reference::backward(net, table, params, run.x, activations, output, run.grad_y, c.batch, round);
  if (!c.terms.first && c.terms.gradients)
    compare(run.grad_x(), wanted.values[0], grad_units, "gradient of the input");
  for (std::size_t p = 0; p < table.size(); ++p) {
    const double share = table[p].role == model::ParamRole::running ? LayerRun::kShare : 1.0;
    for (double& value : wanted.params[p]) value *= share;
  }
  for (std::size_t p = 0; p < table.size(); ++p) {
    const reference::Array &found = gradients[place[p]], &exact = wanted.params[p];
    if (exact.empty()) continue;  // the sink's
    if (c.terms.fp32_units == 0.0 && c.terms.library_units == 0.0) {
      expect_equal(found, exact, table[p].name);
    } else if (c.terms.values == Values::nan) {
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_EQ(std::isnan(found[i]), std::isnan(exact[i])) << table[p].name;
    } else {
      const bool of_rounded = precision != engine::Precision::fp32 && c.terms.library_units > 0.0;
      EXPECT_LE(reference::gradient_distance(table, found, wanted.params, p),
                grad_units * 0x1.0p-24 + (of_rounded ? c.terms.library_units * eps : 0.0) +
                    (rounds_between ? eps : 0.0))
          << table[p].name;
    }
  }

  run.run(run.evaluate_program(), engine::RunnerKind::audit);
  const auto evaluated =
      reference::forward(net, params, run.x, c.batch, round, reference::Statistics::running, normalized);
  compare(run.y(), evaluated[output.id - 1], c.terms.fp32_units, "output in evaluation");
}

}  // namespace cifar_mpi::test
