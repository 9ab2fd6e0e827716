#include <algorithm>
#include <limits>
#include <tuple>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/cpu/backend.hpp"
#include "cuda/device/gpu.hpp"
#include "cuda/device/training_run.hpp"
#include "support/networks.hpp"
#include "support/random_networks.hpp"

/// Whole networks, steps and runners on the GPU, against the double-precision reference and the CPU backend.
namespace cifar_mpi::cuda::testing {
namespace {

using engine::ControlLayout;
using engine::Precision;
using engine::RunnerKind;
using test::expect_reference_gradients;

model::NetSpec tutorial() { return model::make_model("tutorial", {24, 24, 3}, 10); }

class CudaNetwork : public GpuTest {};

/// relative_tolerance in fp32. tf32 and bf16 round each operand once, whatever the length of a sum. If two of the 9 values
/// of a pooling window are within two roundings of each other, rounding decides the maximum, and a whole gradient goes to
/// another place. Relative to the length of the gradient, that is the square root of the share of such windows.
double tolerance_of(const model::NetSpec& net, Precision precision) {
  if (precision == Precision::fp32) return reference::relative_tolerance(net, 0x1.0p-24);
  const double eps = precision == Precision::bf16 ? 0x1.0p-9 : 0x1.0p-11;
  return 2.0 * reference::layers_passed(net) * eps + std::sqrt(9.0 * 2.0 * eps);
}

TEST_F(CudaNetwork, HasTheReferenceGradientsForEveryOrderOfLayersInEveryPrecision) {
  const auto backend = make_backend({});
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16}) {
    std::vector<model::NetSpec> nets = test::orders_of_layers();
    nets.push_back(tutorial());
    for (const model::NetSpec& net : nets) {
      // A gradient moves by more than rounding if rounding takes a unit's input past zero or past its neighbour in a
      // pooling window. Among the 175 000 units of the tutorial's few images, that happens.
      const std::vector<int> batches =
          net.name == tutorial().name ? std::vector<int>{1, 3} : std::vector<int>{1, 5, 19};
      for (const int batch : batches) {
        TrainingRun run(*backend, {.net = net, .batch = batch, .precision = precision});
        auto program = run.gradient_program();
        run.poison();
        run.run(std::move(program));
        expect_reference_gradients(run, run.wanted(), tolerance_of(net, precision));
      }
    }
  }
}

TEST_F(CudaNetwork, HasTheReferenceGradientsAndStatisticsOfResidualNetworks) {
  const auto backend = make_backend({});
  std::vector<model::NetSpec> nets;
  for (const int channels : {16, 12}) nets.push_back(test::network_with_blocks(channels));
  nets.push_back(model::make_model("resnet20", {16, 16, 3}, 10));
  for (const model::NetSpec& net : nets) {
    TrainingRun run(*backend, {.net = net, .batch = 5});
    auto program = run.gradient_program();
    run.poison();
    run.run(std::move(program));
    expect_reference_gradients(run, run.wanted(), tolerance_of(net, Precision::fp32));
  }
}

/// After a BatchNorm, the gradients of masked positions are nearly equal. If they lie near the middle between two bf16
/// values, many of them round the wrong way at once, while the sum that remains after subtracting the mean is small. The
/// reference shows what bf16 costs there: the GPU's gradients must be less than twice as far from the exact ones as the
/// rounded reference is.
TEST_F(CudaNetwork, RoundsInBf16AfterBatchNormNoMoreThanTheReference) {
  const auto backend = make_backend({});
  for (const int channels : {16, 12}) {
    TrainingRun run(*backend,
                    {.net = test::network_with_blocks(channels), .batch = 20, .precision = Precision::bf16});
    const auto exact = run.wanted(), narrow = run.wanted([](reference::Array values) {
      return rounded(std::move(values), ValueType::bf16);
    });
    run.run(run.gradient_program());
    const reference::Params found = run.gradients();
    for (std::size_t p = 0; p < found.size(); ++p) {
      if (run.table[p].role == model::ParamRole::frozen) continue;
      const double bf16s = reference::gradient_distance(run.table, narrow.grads[p], exact.grads, p);
      EXPECT_LE(bf16s, 0.25) << run.table[p].name;
      EXPECT_LE(reference::gradient_distance(run.table, found[p], exact.grads, p), 2.0 * bf16s + 0x1.0p-9)
          << channels << " channels: " << run.table[p].name;
    }
  }
}

TEST_F(CudaNetwork, MovesTheRunningStatisticsOfAStepAndEvaluatesWithThem) {
  const auto backend = make_backend({});
  TrainingRun run(*backend, {.net = test::network_with_blocks(16), .batch = 20});
  const reference::Params before = run.logical(run.params());
  run.run(run.step_program());
  const reference::Params after = run.logical(run.params()), ema = run.logical(run.ema());
  const double share = 1.0 - optim::ema_decay(0.9999, 0);
  for (std::size_t p = 0; p < before.size(); ++p) {
    if (run.table[p].role != model::ParamRole::running) continue;
    const reference::Array batch = run.statistics(p);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const double wanted = before[p][i] + 0.1 * (batch[i] - before[p][i]);
      const double size =
          1.0 + std::abs(before[p][i]) + std::abs(batch[i]);  // a handful of single operations
      EXPECT_NEAR(after[p][i], wanted, 4 * 0x1.0p-24 * size) << run.table[p].name;
      EXPECT_NEAR(ema[p][i], before[p][i] + share * (wanted - before[p][i]), 8 * 0x1.0p-24 * size);
    }
  }
  run.run(run.evaluate_program());
  const auto activations = reference::forward(run.spec.net, after, run.input(std::nullopt), 20,
                                              reference::as_it_is, reference::Statistics::running);
  const std::vector<std::uint8_t> labels(run.labels.begin(), run.labels.begin() + 20);
  const auto wanted = reference::softmax_cross_entropy(7, activations[activations.size() - 2], labels, 1.0);
  EXPECT_NEAR(static_cast<double>(run.loss()), wanted.sum,
              tolerance_of(run.spec.net, Precision::fp32) * 20 * std::log(7.0));
}

TEST_F(CudaNetwork, HasTheReferenceGradientsOfRandomGraphs) {
  const auto backend = make_backend({});
  std::vector<model::NetSpec> nets{test::network_with_frozen_layers()};
  for (std::uint64_t seed = 0; seed < 100; ++seed) nets.push_back(test::RandomNetwork(seed).make());
  // of 300 the ones with the largest errors: terms that cancel
  for (const std::uint64_t seed : {277, 290}) nets.push_back(test::RandomNetwork(seed).make());
  for (const model::NetSpec& net : nets) {
    TrainingRun run(*backend, {.net = net, .batch = 3});
    auto program = run.gradient_program();
    run.poison();
    run.run(std::move(program));
    expect_reference_gradients(run, run.wanted(), tolerance_of(run.spec.net, Precision::fp32));
  }
}

TEST_F(CudaNetwork, LeavesOutTheGradientsOfParametersThatNoLongerTrain) {
  const auto backend = make_backend({});
  std::size_t gradients = 0, shorter = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    TrainingRun run(*backend,
                    {.net = test::freezing_after(7, test::RandomNetwork(seed).make(), seed), .batch = 3});
    const test::LeftOut left_out = test::expect_frozen_left_out(run, 7);
    gradients += left_out.gradients;
    shorter += left_out.tasks ? 1 : 0;
  }
  EXPECT_GT(gradients, 40u);
  EXPECT_GT(shorter, 10u);
}

TEST_F(CudaNetwork, DistortsAsTheReference) {
  const auto backend = make_backend({});
  TrainingRun run(*backend,
                  {.net = tutorial(), .batch = 5, .augment = data::Augment::tutorial, .source = {32, 32, 3}});
  run.run(run.gradient_program());
  expect_reference_gradients(run, run.wanted(), tolerance_of(run.spec.net, Precision::fp32));
}

TEST_F(CudaNetwork, DeclaresEveryByteItTouches) {
  const auto backend = make_backend({});
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16}) {
    std::vector<model::NetSpec> nets = test::orders_of_layers();
    nets.push_back(test::network_with_blocks(16));
    for (const model::NetSpec& net : nets) {
      const auto traces = [&](RunnerKind kind) {
        TrainingRun run(*backend, {.net = net, .batch = 5, .precision = precision});
        EXPECT_NO_THROW(run.run(run.step_program(), kind)) << net.name;
        EXPECT_NO_THROW(run.run(run.evaluate_program(), kind)) << net.name;
        const std::vector<float> loss{run.loss(), static_cast<float>(run.records[0].cross_entropy)};
        return std::tuple{run.params(), run.ema(), run.reduced(), run.predictions(), loss};
      };
      // data that a task reads without declaring it is NaN under audit
      EXPECT_EQ(traces(RunnerKind::audit), traces(RunnerKind::serial)) << net.name;
    }
  }
}

TEST_F(CudaNetwork, LeavesPaddingOfGradientsZero) {
  const auto backend = make_backend({});
  TrainingRun run(*backend, {.net = tutorial(), .batch = 5, .precision = Precision::bf16});
  run.run(run.gradient_program());
  const std::vector<float> grads = run.grads();
  for (std::size_t p = 0; p < run.table.size(); ++p) {
    const auto& entry = run.tower->layout().entries[p];
    std::vector<float> holds_value(entry.floats);
    run.tower->from_logical(p, std::vector<float>(static_cast<std::size_t>(run.table[p].shape.count()), 1.0f),
                            holds_value);
    for (std::size_t i = 0; i < entry.floats; ++i) {
      ASSERT_TRUE(holds_value[i] != 0.0f || grads[entry.offset + i] == 0.0f) << run.table[p].name;
    }
  }
}

TEST_F(CudaNetwork, HasTheGradientsOfTheCpu) {
  std::unique_ptr<engine::Backend> host;
  try {
    host = cpu::make_backend({});
  } catch (const Error& error) {
    GTEST_SKIP() << "LOUD: no CPU backend to compare with: " << error.what();
  }
  const auto backend = make_backend({});
  TrainingRun gpu(*backend, {.net = tutorial(), .batch = 3}), cpu(*host, {.net = tutorial(), .batch = 3});
  gpu.run(gpu.gradient_program());
  cpu.run(cpu.gradient_program());
  const reference::Params found = gpu.logical(gpu.grads()), wanted = cpu.logical(cpu.grads());
  for (std::size_t p = 0; p < found.size(); ++p) {
    EXPECT_LE(relative_distance(found[p], wanted[p]), 2.0 * tolerance_of(gpu.spec.net, Precision::fp32))
        << gpu.table[p].name;
  }
}

TEST_F(CudaNetwork, GivesTheSameBitsFromEveryRunnerAndReadsNoStaleBytes) {
  const auto backend = make_backend({});
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    std::vector<std::vector<float>> params, emas;
    std::vector<std::vector<double>> losses;
    for (const RunnerKind kind :
         {RunnerKind::serial, RunnerKind::lanes, RunnerKind::graph, RunnerKind::graph}) {
      TrainingRun run(*backend, {.net = tutorial(),
                                 .batch = 6,
                                 .precision = precision,
                                 .augment = data::Augment::tutorial,
                                 .source = {32, 32, 3}});
      auto program = run.step_program();
      run.poison();
      const auto runner = run.runner(std::move(program), kind);
      const std::vector<double> untouched = runner->task_seconds();
      std::vector<double> loss;
      for (int i = 0; i < 5; ++i) {
        runner->replay();
        if (i == 2) {
          runner->finish();
          run.poison();  // the content of the scratch between two steps must not matter
        }
      }
      runner->finish();
      EXPECT_EQ(run.steps(), 5u);
      if (kind == RunnerKind::serial) {
        const std::vector<double> seconds = runner->task_seconds();
        for (std::size_t task = 0; task < seconds.size(); ++task) EXPECT_GT(seconds[task], untouched[task]);
      }
      for (std::uint64_t step = 0; step < 5; ++step) {
        EXPECT_EQ(run.records[step].step, step);
        EXPECT_TRUE(run.records[step].applied);
        EXPECT_EQ(run.records[step].samples, 6.0);
        loss.push_back(run.records[step].cross_entropy);
      }
      params.push_back(run.params());
      emas.push_back(run.ema());
      losses.push_back(std::move(loss));
    }
    for (std::size_t i = 1; i < params.size(); ++i) {
      EXPECT_EQ(params[i], params[0]) << i;
      EXPECT_EQ(emas[i], emas[0]) << i;
      EXPECT_EQ(losses[i], losses[0]) << i;
    }
  }
}

TEST_F(CudaNetwork, HandsRecordsOverOneStepLate) {
  const auto backend = make_backend({});
  TrainingRun run(*backend, {.net = test::orders_of_layers().back()});
  const auto runner = run.runner(run.record_program(), RunnerKind::graph);
  for (std::uint64_t step = 0; step < 2 * engine::kRecordRing; ++step) {
    runner->replay();
    if (step > 0) {
      ASSERT_EQ(run.records[(step - 1) % engine::kRecordRing].step, step - 1);
    }
  }
  runner->finish();
  EXPECT_EQ(run.records[(2 * engine::kRecordRing - 1) % engine::kRecordRing].step,
            2 * engine::kRecordRing - 1);
}

TEST_F(CudaNetwork, CarriesRequestsIntoASealedGraph) {
  const auto backend = make_backend({});
  TrainingRun run(*backend, {.net = test::orders_of_layers().front(), .batch = 8});
  const auto runner = run.runner(run.step_program(), RunnerKind::graph);
  for (int i = 0; i < 3; ++i) runner->replay();
  runner->finish();
  EXPECT_EQ(run.records[2].stop_requests, 0.0);
  EXPECT_EQ(run.records[1].slots[ControlLayout::hash_pieces], 0.0f);
  run.requests = engine::kStopRequest | engine::kTraceRequest | engine::kSaveRequest;
  for (std::uint64_t step = 3; step < 7; ++step) {
    const std::uint64_t hash = 0x1234'5678'9ABC'DEF0u + 0x1111'1111'1111'1111u * (step - 3);
    run.set_facts({0.0, 12.5f, hash});
    runner->replay();
    runner->finish();
    EXPECT_EQ(run.records[step].stop_requests, 1.0);
    EXPECT_EQ(run.records[step].trace_requests, 1.0);
    EXPECT_EQ(run.records[step].save_requests, 1.0);
    EXPECT_EQ(run.records[step].slots[ControlLayout::compute_ms], 12.5f);
    for (std::size_t piece = 0; piece < 4; ++piece) {
      EXPECT_EQ(run.records[step].slots[ControlLayout::hash_pieces + piece],
                static_cast<float>(hash >> 16 * piece & 0xFFFFu));
    }
  }
  runner->replay();
  runner->finish();
  EXPECT_GT(run.records[7].slots[ControlLayout::compute_ms], 0.0f);
  EXPECT_LT(run.records[7].slots[ControlLayout::compute_ms], 60'000.0f);
}

TEST_F(CudaNetwork, FreezesWhenTheLossIsNotFinite) {
  const auto backend = make_backend({});
  TrainingRun run(*backend, {.net = test::orders_of_layers().front(), .batch = 8});
  std::vector<float> bad = run.params();
  std::fill(bad.begin(), bad.begin() + 16, std::numeric_limits<float>::quiet_NaN());
  run.set_params(bad);
  const std::vector<float> ema = run.ema();
  const auto runner = run.runner(run.step_program(), RunnerKind::graph);
  for (int i = 0; i < 3; ++i) runner->replay();
  runner->finish();
  EXPECT_FALSE(run.records[0].applied);
  EXPECT_EQ(run.records[0].samples, 8.0);
  EXPECT_EQ(run.records[1].samples, 0.0);  // all three were of step 0
  EXPECT_EQ(run.steps(), 0u);
  EXPECT_EQ(run.ema(), ema);
}

TEST_F(CudaNetwork, PredictsWhatTheReferencePredicts) {
  const auto backend = make_backend({});
  TrainingRun run(*backend, {.net = test::orders_of_layers().front(), .batch = 20});
  const auto activations =
      reference::forward(run.spec.net, run.logical(run.params()), run.input(std::nullopt), 20);
  const std::vector<std::uint8_t> labels(run.labels.begin(), run.labels.begin() + 20);
  const auto wanted = reference::softmax_cross_entropy(10, activations[activations.size() - 2], labels, 1.0);
  run.run(run.evaluate_program(), RunnerKind::graph, 3);  // 61 samples: the fourth batch holds one
  EXPECT_EQ(run.cursor(), 60u);
  run.set_cursor(0);
  run.run(run.evaluate_program());
  EXPECT_NEAR(static_cast<double>(run.loss()), wanted.sum,
              tolerance_of(run.spec.net, Precision::fp32) * 20 * std::log(10.0));
  double correct = 0.0;
  const auto predictions = run.predictions();
  for (std::size_t i = 0; i < labels.size(); ++i) correct += predictions[i] == labels[i] ? 1.0 : 0.0;
  EXPECT_EQ(correct, wanted.correct);
  run.set_cursor(61);
  run.run(run.evaluate_program());
  EXPECT_EQ(run.loss(), 0.0f);
}

double distance(const reference::Params& a, const reference::Params& b) {
  reference::Array left, right;
  for (std::size_t p = 0; p < a.size(); ++p) {
    left.insert(left.end(), a[p].begin(), a[p].end());
    right.insert(right.end(), b[p].begin(), b[p].end());
  }
  return relative_distance(left, right);
}

/// Reports without deciding: one perturbation shows only roughly how far chaos goes in fifty steps, and another order of
/// sums may go further without a bug. The tests of gradients decide.
TEST_F(CudaNetwork, TellsHowFarFiftyStepsLeadFromTheCpu) {
  std::unique_ptr<engine::Backend> host;
  try {
    host = cpu::make_backend({});
  } catch (const Error& error) {
    GTEST_SKIP() << "LOUD: no CPU backend to compare with: " << error.what();
  }
  const auto backend = make_backend({});
  const auto train = [](engine::Backend& on, double ulps) {
    TrainingRun run(on, {.net = tutorial(),
                         .batch = 4,
                         .augment = data::Augment::tutorial,
                         .source = {32, 32, 3},
                         .ulps = ulps});
    run.run(run.step_program(), RunnerKind::automatic, 50);
    return run.logical(run.params());
  };
  const reference::Params cpu = train(*host, 0.0);
  const double chaos = distance(train(*host, 1.0), cpu);
  const double found = distance(train(*backend, 0.0), cpu);
  EXPECT_LT(found, 1.0) << "nothing of the weights is left";
  std::printf("after 50 steps: %.2g from the CPU, where one ulp leads to %.2g; 4 times that would be much\n",
              found, chaos);
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
