#include <algorithm>
#include <cmath>
#include <limits>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/optim/optimizer.hpp"
#include "cuda/device/gpu.hpp"
#include "cuda/device/training_run.hpp"
#include "cuda/matrix_tasks.hpp"
#include "reference/reference.hpp"
#include "support/errors.hpp"
#include "support/networks.hpp"

/// The tasks of a step around its network, and runners on unusual programs.
namespace cifar_mpi::cuda::testing {
namespace {

using engine::RunnerKind;

class CudaStep : public GpuTest {};

/// A lane without waits begins with the program.
TEST_F(CudaStep, StartsALaneThatWaitsForNothing) {
  const auto backend = make_backend({});
  constexpr std::size_t kCount = 100'000;
  const std::vector<float> ones(kCount, 1.0f);
  const Buffer one = backend->allocate(kCount * sizeof(float));
  backend->copy(one.data(), ones.data(), one.size());
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes, RunnerKind::graph}) {
    const Buffer sum = backend->allocate(one.size());
    engine::StepProgram program("two lanes");
    program.run(engine::kCompute, backend->sum_task("copy", {one.as<float>(), one.as<float>(), nullptr, 1}));
    for (int i = 0; i < 3; ++i) {
      program.run(engine::kComm, backend->sum_task("add", {sum.as<float>(), sum.as<float>(),
                                                           one.as<float>() + 1, kCount - 1}));
    }
    program.wait(engine::kCompute, program.set(engine::kComm));
    program.finalize();
    const auto runner = backend->runner(std::move(program), kind, {});
    for (int i = 0; i < 4; ++i) runner->replay();
    runner->finish();
    std::vector<float> found(kCount - 1);
    backend->copy(found.data(), sum.data(), found.size() * sizeof(float));
    EXPECT_EQ(std::count(found.begin(), found.end(), 12.0f), static_cast<std::ptrdiff_t>(found.size()));
  }
}

/// More than fit into one launch of the update: each has its decay, and all decay is summed.
TEST_F(CudaStep, UpdatesManyParametersAsTheFormulas) {
  std::vector<model::Layer> layers;
  for (int i = 0; i < 40; ++i) {
    layers.push_back(model::Linear{
        .name = concat("l", i), .outputs = 6 + i % 3, .weight_decay = 0.01f * static_cast<float>(i % 4)});
  }
  layers.push_back(model::Linear{.name = "last", .outputs = 9});
  layers.push_back(model::SoftmaxCrossEntropy{});
  const auto backend = make_backend({});
  TrainingRun run(*backend, {.net = model::make_net("many", {1, 2, 3}, 9, layers), .batch = 3});
  run.run(run.gradient_program());
  const reference::Params before = run.logical(run.params()), grads = run.logical(run.grads());
  run.run(run.step_program());
  const reference::Params after = run.logical(run.params()), ema = run.logical(run.ema());
  const double rate = optim::Schedule(run.schedule()).rate(0);
  const double share = 1.0 - optim::ema_decay(0.9999, 0);
  double decay_term = 0.0;
  for (std::size_t p = 0; p < before.size(); ++p) {
    const auto decay = static_cast<double>(run.table[p].weight_decay);
    for (std::size_t i = 0; i < before[p].size(); ++i) {
      const double w = before[p][i], wanted = w - rate * (grads[p][i] + decay * w);
      decay_term += 0.5 * decay * w * w;
      // a handful of single operations on values of at most 1
      ASSERT_NEAR(after[p][i], wanted, 4 * 0x1.0p-24) << run.table[p].name << ' ' << i;
      ASSERT_NEAR(ema[p][i], w + share * (wanted - w), 8 * 0x1.0p-24) << run.table[p].name << ' ' << i;
    }
  }
  EXPECT_GT(decay_term, 0.0);
  EXPECT_NEAR(run.records[0].decay_term, decay_term, 1e-12 * decay_term);
}

/// The first step of every optimizer, with the gradient clipped to half its norm, in more than one launch.
TEST_F(CudaStep, UpdatesByEveryOptimizerWithClippedGradients) {
  std::vector<model::Layer> layers;
  for (int i = 0; i < 40; ++i)
    layers.push_back(model::Linear{.name = concat("l", i), .outputs = 6, .weight_decay = 0.01f});
  layers.push_back(model::SoftmaxCrossEntropy{});
  const auto backend = make_backend({});
  for (const auto kind : {optim::OptimizerKind::sgd, optim::OptimizerKind::momentum,
                          optim::OptimizerKind::nesterov, optim::OptimizerKind::adamw}) {
    TrainingSpec spec{.net = model::make_net("many", {1, 2, 3}, 6, layers), .batch = 3};
    spec.optimizer = {.kind = kind, .eps = 1e-3};
    TrainingRun plain(*backend, spec);
    plain.run(plain.gradient_program());
    const reference::Params before = plain.logical(plain.params()), grads = plain.logical(plain.grads());
    double square = 0.0;
    for (const reference::Array& array : grads) {
      for (const double g : array) square += g * g;
    }
    ASSERT_GT(square, 0.0);
    spec.clip_norm = 0.5 * std::sqrt(square);
    TrainingRun run(*backend, spec);
    run.run(run.step_program());
    EXPECT_NEAR(run.records[0].gradient_norm, std::sqrt(square), 1e-6 * std::sqrt(square));
    const reference::Params after = run.logical(run.params());
    const std::vector<double> rates{optim::Schedule(run.schedule()).rate(0)};
    for (std::size_t p = 0; p < before.size(); ++p) {
      for (std::size_t i = 0; i < before[p].size(); ++i) {
        const std::vector<double> clipped{0.5 * grads[p][i]};
        const double wanted =
            reference::trajectory(spec.optimizer, before[p][i],
                                  static_cast<double>(run.table[p].weight_decay), clipped, rates)
                .back();
        // a handful of single operations on values of at most 1; adamw divides by at least eps
        ASSERT_NEAR(after[p][i], wanted, 16 * 0x1.0p-24) << to_string(kind) << ' ' << run.table[p].name;
      }
    }
  }
}

/// Three layers whose middle one is a hidden matrix, its elements in an order of their own with padding, and blocks for
/// an update with muon.
struct MatrixBench {
  MatrixBench(engine::Backend& device, std::int64_t rest, std::int64_t out) : backend(device) {
    params.resize(4);
    for (std::size_t p = 0; p < 3; ++p) params[p].operation = 2 - p;
    params[3].part = model::ParamPart::biases;
    params[1].weight_decay = 0.25f;
    const auto values = static_cast<std::size_t>(rest * out);
    for (const std::size_t floats : {std::size_t{20}, values + 10, std::size_t{32}, std::size_t{5}})
      engine::append(layout, floats);
    const auto& entry = layout.entries[1];
    for (std::size_t i = 0; i < values; ++i) places.push_back(static_cast<std::uint32_t>(i * 7 % values) + 5);
    matrix = {"m", entry.offset, entry.floats, rest, out, upload(places)};
    update.params = block(1);
    update.grads = block(2);
    update.ema = block(3);
    update.states[0] = block(4);
    update.moves = block(5);
    update.end = layout.floats;
    update.control = upload(std::vector<float>(16, 1.0f));
    update.step = upload(std::vector<std::uint64_t>{4});
    update.decay_sum = upload(std::vector<double>{0.0});
    update.gradient_norm = upload(std::vector<double>{8.0});
    update.clip_norm = 2.0;
    update.schedule.base_rate = 0.125;
    update.optimizer = {
        .kind = optim::OptimizerKind::muon, .momentum = 0.5, .muon_momentum = 0.75, .normalize_every = 2};
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    Buffer& buffer = buffers.emplace_back(backend.allocate(values.size() * sizeof(T)));
    backend.copy(buffer.data(), values.data(), buffer.size());
    return buffer.as<T>();
  }
  float* block(std::uint32_t salt) {
    std::vector<float> values;
    for (std::size_t i = 0; i < layout.floats; ++i) values.push_back(noise(i, salt));
    return upload(values);
  }
  std::vector<double> download(const float* at) {
    std::vector<float> values(layout.floats);
    backend.copy(values.data(), at, values.size() * sizeof(float));
    return {values.begin(), values.end()};
  }
  void run(RunnerKind kind) {
    arena.rewind();
    engine::StepProgram program("muon");
    for (engine::Task& task : backend.matrix_tasks(update, matrix, arena))
      program.run(engine::kCompute, std::move(task));
    program.run(engine::kCompute, backend.update_task(update, params, layout));
    program.finalize();
    const auto runner = backend.runner(std::move(program), kind, {});
    runner->replay();
    runner->finish();
  }

  engine::Backend& backend;
  engine::Arena arena{[this](std::size_t bytes) { return backend.allocate(bytes); }};
  std::list<Buffer> buffers;
  model::ParamTable params;
  engine::ParamLayout layout;
  std::vector<std::uint32_t> places;
  engine::Matrix matrix;
  engine::UpdateBinding update;
};

TEST_F(CudaStep, MovesHiddenMatricesByMuonAndTheOthersByNesterov) {
  const auto backend = make_backend({});
  struct Case {
    int rest, out;
    RunnerKind kind;
  };
  for (const auto& [rest, out, kind] : {Case{45, 12, RunnerKind::serial}, {12, 45, RunnerKind::graph}}) {
    MatrixBench bench(*backend, rest, out);
    const std::vector<double> w = bench.download(bench.update.params), g = bench.download(bench.update.grads),
                              s = bench.download(bench.update.states[0]);
    bench.run(kind);
    const std::vector<double> after = bench.download(bench.update.params),
                              momenta = bench.download(bench.update.states[0]);
    double decay_sum = 1.0;
    backend->copy(&decay_sum, bench.update.decay_sum, sizeof decay_sum);
    EXPECT_EQ(decay_sum, 0.0);  // the decay of a hidden matrix is no part of the loss
    const std::size_t begin = bench.matrix.begin, end = begin + bench.matrix.floats;
    std::vector<double> direction;
    double squares = 0.0;
    for (std::size_t i = begin; i < end; ++i) squares += w[i] * w[i];
    for (const std::uint32_t place : bench.places) {
      const std::size_t at = begin + place;
      direction.push_back(0.25 * g[at] + 0.75 * (0.75 * s[at] + 0.25 * g[at]));
    }
    const std::vector<double> move =
        reference::muon_move(direction, static_cast<std::size_t>(rest), static_cast<std::size_t>(out));
    // as in tests/cpu: three iterations multiply the errors of sums of up to 45 terms by at most 3.45 each
    const double unit = 0x1.0p-24, tolerance = 41.0 * 4.0 * std::sqrt(45.0) * 2.0 * unit;
    for (std::size_t i = 0; i < bench.places.size(); ++i) {
      const std::size_t at = begin + bench.places[i];
      const double normal = w[at] * std::sqrt(out / squares);
      ASSERT_NEAR(after[at], normal - 0.125 * (move[i] + 0.25 * normal), tolerance) << i;
      ASSERT_NEAR(momenta[at], 0.75 * s[at] + 0.25 * g[at], 4 * unit) << i;
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (i >= begin && i < end) continue;
      const double grad = 0.25 * g[i], gathered = 0.5 * s[i] + grad;
      ASSERT_NEAR(after[i], w[i] - 0.125 * (grad + 0.5 * gathered), 8 * unit) << i;
    }
  }
}

/// Local steps repeat the tasks of each matrix; trials of cuBLASLt for each would take seconds at the start.
TEST_F(CudaStep, PlansTheProductsOfMatricesOfOneShapeOnce) {
  const auto backend = make_backend({});
  Bench gpu;
  MatrixProducts products;
  const Buffer scratch = gpu.device.allocate(MatrixProducts::kScratchBytes);
  std::size_t planned = 0;
  for (const auto& [rest, out] : {std::pair{45, 12}, {12, 45}, {16, 16}}) {
    MatrixBench bench(*backend, rest, out);
    for (int step = 0; step < 3; ++step) {
      bench.arena.rewind();
      EXPECT_EQ(products.tasks(gpu.device, bench.update, bench.matrix, scratch.data(), bench.arena).size(),
                2u + 4u * optim::NewtonSchulz::kIterations + 1u);
      if (step == 0) planned = products.planned();
      EXPECT_EQ(products.planned(), planned);
    }
  }
  EXPECT_EQ(planned, 3u + 2u + 2u);  // all share the square of A, which the third also multiplies by
}

/// An infinite weight of a class that no label names leaves the loss finite.
TEST_F(CudaStep, FreezesWhenTheDecayTermIsNotFinite) {
  const auto backend = make_backend({});
  const model::NetSpec net = model::make_net(
      "decay", {2, 2, 1}, 3,
      {model::Linear{.name = "ones", .outputs = 2},
       model::Linear{.name = "l", .outputs = 3, .weight_decay = 1.0f}, model::SoftmaxCrossEntropy{}});
  TrainingRun run(*backend, {.net = net, .batch = 1});
  std::vector<float> params(run.tower->layout().floats, 0.0f);
  for (std::size_t p = 0; p < run.table.size(); ++p) {
    const std::size_t at = run.tower->layout().entries[p].offset;
    if (run.table[p].name == "ones/biases") params[at] = params[at + 1] = 1.0f;
    if (run.table[p].name == "l/weights") {
      params[at + (run.batch_labels(0)[0] + 1u) % 3] = -std::numeric_limits<float>::infinity();
    }
  }
  run.set_params(params);
  run.run(run.step_program());
  EXPECT_TRUE(std::isfinite(run.records[0].cross_entropy)) << run.records[0].cross_entropy;
  EXPECT_FALSE(run.records[0].applied);
  EXPECT_EQ(run.steps(), 0u);
}

TEST_F(CudaStep, HandsOverOnlyTheRecordsOfTheProgramThatRan) {
  const auto backend = make_backend({});
  TrainingRun run(*backend, {.net = test::orders_of_layers().back()});
  auto record = run.record_program();
  run.run(run.evaluate_program(), RunnerKind::graph, 3);
  run.run(std::move(record), RunnerKind::graph, 2);
  EXPECT_EQ(run.records[0].step, 0u);
  EXPECT_TRUE(run.records[0].applied);
  EXPECT_TRUE(run.records[1].applied);
  EXPECT_FALSE(run.records[2].applied);
}

TEST_F(CudaStep, GoesOnAfterACaptureThatFailed) {
  const auto backend = make_backend({});
  TrainingRun run(*backend, {.net = test::orders_of_layers().back()});
  engine::StepProgram fragile("fragile");
  int starts = 0;
  fragile.run(engine::kCompute, {"task",
                                 {},
                                 {},
                                 [&starts](engine::Lane&) {
                                   if (++starts == 2) throw Error(ErrorKind::device, "not twice");
                                 },
                                 {}});
  fragile.finalize();
  const auto runner = run.runner(std::move(fragile), RunnerKind::graph);
  runner->replay();
  expect_error(ErrorKind::device, {"'task'"}, [&] { runner->replay(); });
  run.run(run.record_program(), RunnerKind::graph, 3);
  EXPECT_EQ(run.steps(), 3u);
}

TEST_F(CudaStep, AddsUnderAudit) {
  const auto backend = make_backend({});
  const std::vector<float> values{1.0f, 2.0f, 3.0f};
  const Buffer a = backend->allocate(12), b = backend->allocate(12), sum = backend->allocate(12);
  for (const Buffer* buffer : {&a, &b}) backend->copy(buffer->data(), values.data(), 12);
  for (const bool two : {false, true}) {
    engine::StepProgram program("sum");
    program.run(engine::kCompute,
                backend->sum_task("sum", {sum.as<float>(), a.as<float>(), two ? b.as<float>() : nullptr, 3}));
    program.finalize();
    const auto runner =
        backend->runner(std::move(program), RunnerKind::audit,
                        {{a.data(), a.size()}, {b.data(), b.size()}, {sum.data(), sum.size()}});
    EXPECT_NO_THROW(runner->replay());
    std::vector<float> found(3);
    backend->copy(found.data(), sum.data(), 12);
    EXPECT_EQ(found, (two ? std::vector<float>{2.0f, 4.0f, 6.0f} : values));
  }
}

TEST_F(CudaStep, TakesAShareOfADifferenceOrOfAValue) {
  const auto backend = make_backend({});
  const std::vector<float> values{1.0f, 2.0f, 4.0f}, others{0.5f, 4.0f, 4.0f};
  const Buffer a = backend->allocate(12), b = backend->allocate(12);
  backend->copy(a.data(), values.data(), 12);
  for (const bool two : {true, false}) {
    backend->copy(b.data(), others.data(), 12);
    engine::StepProgram program("share");
    program.run(engine::kCompute,
                backend->sum_task(
                    "share", {b.as<float>(), a.as<float>(), two ? b.as<float>() : nullptr, 3, 0.25f, -1.0f}));
    program.finalize();
    backend->runner(std::move(program), RunnerKind::serial, {})->replay();
    std::vector<float> found(3);
    backend->copy(found.data(), b.data(), 12);
    EXPECT_EQ(found, (two ? std::vector<float>{0.125f, -0.5f, 0.0f} : std::vector<float>{0.25f, 0.5f, 1.0f}));
  }
}

TEST_F(CudaStep, GetsMemoryFullOfZeros) {
  const auto backend = make_backend({});
  for (const std::size_t bytes : {1u, 1000u, 10'000'000u}) {
    const Buffer buffer = backend->allocate(bytes);
    std::vector<std::byte> found(bytes, std::byte{1});
    backend->copy(found.data(), buffer.data(), bytes);
    EXPECT_EQ(std::count(found.begin(), found.end(), std::byte{0}), static_cast<std::ptrdiff_t>(bytes));
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
