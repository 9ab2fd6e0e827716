#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cpu/bf16.hpp"
#include "cpu/dnnl.hpp"
#include "cpu/network_run.hpp"
#include "support/errors.hpp"
#include "support/networks.hpp"
#include "support/random_networks.hpp"

/// Whole networks on the CPU backend against the double-precision reference.
namespace cifar_mpi::cpu {
namespace {

using engine::ControlLayout;
using engine::ConvMethod;
using engine::Precision;
using engine::RunnerKind;
using test::expect_reference_gradients;

constexpr double kFloatEps = 0x1.0p-24;  // one rounding to nearest
constexpr double kEpsBf16 = 0x1.0p-9;

/// The second convolution's 20 channels do not fill the blocks of a blocked format.
std::vector<model::NetSpec> variants() { return test::orders_of_layers(20); }

TEST(Network, HasTheReferenceGradientsForEveryOrderOfLayers) {
  for (const model::NetSpec& net : variants()) {
    for (const int batch : {1, 5, 20}) {  // oneDNN goes through the first pooling of 20 in pieces of 10
      for (const ConvMethod conv : {ConvMethod::automatic, ConvMethod::direct}) {
        NetworkRun run({.net = net, .batch = batch, .conv = conv});
        const auto wanted = run.wanted();
        run.run(run.gradient_program());
        expect_reference_gradients(run, wanted, relative_tolerance(net, kFloatEps));
      }
    }
  }
}

TEST(Network, HasTheReferenceGradientsOfRandomGraphs) {
  std::vector<model::NetSpec> nets{test::network_with_frozen_layers()};
  for (std::uint64_t seed = 0; seed < 300; ++seed) nets.push_back(test::RandomNetwork(seed).make());
  for (std::size_t i = 0; i < nets.size(); ++i) {
    const model::NetSpec& net = nets[i];
    NetworkRun run({.net = net, .batch = i % 5 == 0 ? 20 : 3});
    const auto wanted = run.wanted();
    run.run(run.gradient_program());
    expect_reference_gradients(run, wanted, relative_tolerance(net, kFloatEps));
  }
}

TEST(Network, LeavesOutTheGradientsOfParametersThatNoLongerTrain) {
  std::size_t gradients = 0, shorter = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    NetworkRun run({.net = test::freezing_after(7, test::RandomNetwork(seed).make(), seed), .batch = 3});
    const test::LeftOut left_out = test::expect_frozen_left_out(run, 7);
    gradients += left_out.gradients;
    shorter += left_out.tasks ? 1 : 0;
  }
  EXPECT_GT(gradients, 300u);
  EXPECT_GT(shorter, 100u);
}

TEST(Network, HasTheReferenceGradientsOfTheTutorial) {
  NetworkRun run({.net = model::make_model("tutorial", {24, 24, 3}, 10), .batch = 3});
  const auto wanted = run.wanted();
  run.run(run.gradient_program());
  expect_reference_gradients(run, wanted, relative_tolerance(run.spec.net, kFloatEps));
}

TEST(Network, HasTheReferenceGradientsAndStatisticsOfResidualNetworks) {
  for (const int channels : {16, 12}) {
    const model::NetSpec net = test::network_with_blocks(channels);
    for (const int batch : {2, 5, 20}) {
      NetworkRun run({.net = net, .batch = batch});
      const auto wanted = run.wanted();
      run.run(run.gradient_program());
      expect_reference_gradients(run, wanted, relative_tolerance(net, kFloatEps));
    }
  }
}

TEST(Network, TakesTheSumAfterABatchNormIntoItsPasses) {
  NetworkRun run({.net = test::network_with_blocks(16), .batch = 5});
  std::vector<std::string> extra;
  const engine::StepProgram program = run.gradient_program();
  for (const engine::Task& task : program.tasks()) {
    for (const char* const word : {"sum1", "sum2", "mask", "relu"}) {
      if (task.name.find(word) != std::string::npos) extra.push_back(task.name);
    }
  }
  EXPECT_EQ(extra, std::vector<std::string>{});
}

TEST(Network, HasTheReferenceGradientsOfResNet20AndFast94) {
  for (const auto& [name, side] : {std::pair{"resnet20", 32}, std::pair{"fast94", 24}}) {
    NetworkRun run({.net = model::make_model(name, {side, side, 3}, 10), .batch = 3});
    const auto wanted = run.wanted();
    run.run(run.gradient_program());
    expect_reference_gradients(run, wanted, relative_tolerance(run.spec.net, kFloatEps));
  }
}

/// The reference includes the roundings of bf16 training. Without them the test would be blunt: they change
/// the winner of a few per cent of the poolings, and each moves a whole gradient.
reference::Array to_bf16_values(reference::Array values) {
  for (double& value : values) value = to_float(to_bf16(static_cast<float>(value)));
  return values;
}

// Forward and backward choose as the reference does unless a sum lies so near the middle between two bf16
// values that its fp32 rounding decides: a share of about (fp32 error)/eps_bf16 of all values. Such a value
// decides a pooling if another of the 9 in its window lies within two roundings (2^-7) of it; then a whole
// gradient moves, which in length is the square root of its share.
double bf16_tolerance(const model::NetSpec& net) {
  const double undecided = relative_tolerance(net, kFloatEps) / kEpsBf16;
  return std::sqrt(undecided * 9.0 * 0x1.0p-7);
}

TEST(Network, HasTheReferenceGradientsInBf16) {
  if (!has_bf16()) GTEST_SKIP() << "LOUD: this cpu has no bf16 arithmetic, bf16 is NOT tested here";
  std::vector<model::NetSpec> nets = variants();
  nets.push_back(model::make_model("tutorial", {24, 24, 3}, 10));
  for (const model::NetSpec& net : nets) {
    for (const ConvMethod conv : {ConvMethod::automatic, ConvMethod::direct}) {
      NetworkRun run(
          {.net = net, .batch = net.input.height < 24 ? 20 : 4, .precision = Precision::bf16, .conv = conv});
      const auto wanted = run.wanted(to_bf16_values);
      run.run(run.gradient_program());
      expect_reference_gradients(run, wanted, bf16_tolerance(net));
    }
  }
}

// After a BatchNorm, gradients at positions masked by the ReLU are nearly equal, so one near the middle
// between two bf16 values is rounded the other way at many positions at once, and the sum without the mean is
// small. The reference measures the cost of bf16 there: the errors of the gradients are less than twice those
// of the rounded reference.
TEST(Network, RoundsInBf16AfterBatchNormNoMoreThanTheReference) {
  if (!has_bf16()) GTEST_SKIP() << "LOUD: this cpu has no bf16 arithmetic, bf16 is NOT tested here";
  NetworkRun run({.net = test::network_with_blocks(16), .batch = 20, .precision = Precision::bf16});
  const auto rounded = run.wanted(to_bf16_values), exact = run.wanted();
  run.run(run.gradient_program());
  const reference::Params found = run.gradients();
  const double tolerance = bf16_tolerance(run.spec.net);
  for (std::size_t p = 0; p < found.size(); ++p) {
    if (run.table[p].role == model::ParamRole::running) {
      EXPECT_LE(relative_distance(found[p], rounded.grads[p]), tolerance) << run.table[p].name;
    }
    if (run.table[p].role != model::ParamRole::trained) continue;
    const double bf16s = reference::gradient_distance(run.table, rounded.grads[p], exact.grads, p);
    EXPECT_LE(bf16s, 0.25) << run.table[p].name;
    EXPECT_LE(reference::gradient_distance(run.table, found[p], exact.grads, p), tolerance + 2.0 * bf16s)
        << run.table[p].name;
  }
}

TEST(Network, DeclaresEveryByteItTouches) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    if (precision == Precision::bf16 && !has_bf16()) continue;
    std::vector<model::NetSpec> nets = variants();
    nets.push_back(test::network_with_blocks(16));
    for (const model::NetSpec& net : nets) {
      for (const int batch : {3, 20}) {
        for (const ConvMethod conv : {ConvMethod::automatic, ConvMethod::direct}) {
          const int threads = batch == 20 ? 2 : 1;
          const RunSpec spec{
              .net = net, .batch = batch, .precision = precision, .threads = threads, .conv = conv};
          EXPECT_TRUE(NetworkRun(spec).results(RunnerKind::audit) ==
                      NetworkRun(spec).results(RunnerKind::serial))
              << net.name << ", batch " << batch << ", " << to_string(precision);
        }
      }
    }
  }
}

TEST(Network, DeclaresEveryByteItTouchesInRandomGraphs) {
  for (std::uint64_t seed = 200; seed < 230; ++seed) {
    const RunSpec spec{.net = test::RandomNetwork(seed).make(), .batch = 3};
    EXPECT_TRUE(NetworkRun(spec).results(RunnerKind::audit) == NetworkRun(spec).results(RunnerKind::serial))
        << spec.net.name << '\n'
        << model::summary(spec.net);
  }
}

TEST(Network, GivesTheSameBitsInEveryReplayAndFromEveryRunner) {
  for (const int threads : {1, 2}) {
    NetworkRun run({.net = model::make_model("tutorial", {24, 24, 3}, 10), .batch = 32, .threads = threads});
    run.run(run.gradient_program(), RunnerKind::serial);
    const std::vector<float> first = run.reduced();
    for (const RunnerKind kind :
         {RunnerKind::serial, RunnerKind::lanes, RunnerKind::automatic, RunnerKind::audit}) {
      run.set_reduced(std::vector<float>(first.size()));
      run.run(run.gradient_program(), kind);
      EXPECT_EQ(run.reduced(), first) << threads << " threads";
    }
  }
}

TEST(Network, OverwritesGradientsInsteadOfAddingToThem) {
  NetworkRun run({.net = variants().front(), .batch = 4});
  run.run(run.gradient_program());
  const reference::Params first = run.logical(run.grads());
  run.set_reduced(std::vector<float>(run.reduced().size(), std::numeric_limits<float>::quiet_NaN()));
  run.run(run.gradient_program());
  EXPECT_EQ(run.logical(run.grads()), first);
}

TEST(Network, PredictsWhatTheReferencePredicts) {
  for (const model::NetSpec& net : {variants().front(), test::network_with_blocks(16)}) {
    NetworkRun run({.net = net, .batch = 20});
    const auto x = run.input(std::nullopt);
    const auto activations = reference::forward(net, run.logical(run.params()), x, run.spec.batch,
                                                reference::as_it_is, reference::Statistics::running);
    const std::vector<std::uint8_t> labels(run.labels.begin(), run.labels.begin() + run.spec.batch);
    const reference::Array& logits = activations[activations.size() - 2];
    const auto loss = reference::softmax_cross_entropy(net.classes, logits, labels, 1.0);
    run.run(run.evaluate_program());
    const double worst_size = loss.samples * std::log(net.classes);
    EXPECT_NEAR(run.loss(), loss.sum, relative_tolerance(net, kFloatEps) * worst_size) << net.name;
    double correct = 0.0;
    const std::vector<std::uint8_t> predictions = run.predictions();
    for (std::size_t i = 0; i < labels.size(); ++i) correct += predictions[i] == labels[i] ? 1.0 : 0.0;
    EXPECT_EQ(correct, loss.correct) << net.name;
    EXPECT_EQ(run.cursor(), 20u);
  }
}

TEST(Network, RefusesToNormalizeOneValuePerChannel) {
  model::NetBuilder builder("tiny", {4, 4, 3}, 7);
  const model::Value x = builder.global_avg_pool(builder.image(), {"pool"});
  const model::NetSpec net =
      builder.softmax_cross_entropy(builder.linear(builder.batch_norm(x, {.name = "bn"}), {"l1", 7}));
  NetworkRun two({.net = net, .batch = 2});
  EXPECT_NO_THROW(two.gradient_program());
  NetworkRun one({.net = net, .batch = 1});
  EXPECT_NO_THROW(one.evaluate_program());
  expect_error(ErrorKind::usage, {"(bn)"}, [&] { one.gradient_program(); });
  // Together, two ranks have two values.
  std::vector<float> sums(2 * 3);
  engine::TrainBinding binding = one.train_binding();
  binding.rank_sums = {sums.data(), 2};
  one.arena.rewind();
  EXPECT_NO_THROW(one.tower->train_tasks(binding, one.arena));
}

TEST(Network, GoesThroughTheBatchInPiecesOnlyWhereThatPays) {
  NetworkRun pieces({.net = variants().front(), .batch = 20});
  EXPECT_NE(pieces.tower->plan_text().find("10 samples at a time"), std::string::npos);
  NetworkRun whole({.net = variants().front(), .batch = 19});
  EXPECT_EQ(whole.tower->plan_text().find("at a time"), std::string::npos);
}

TEST(Network, NeedsNoReferenceLoopForImagesOfOneToFourChannels) {
  for (const int channels : {1, 2, 3, 4}) {
    const model::NetSpec net = model::make_model("tutorial", {24, 24, channels}, 10);
    for (const int batch : {3, 20}) {
      NetworkRun run({.net = net, .batch = batch, .conv = ConvMethod::direct});
      EXPECT_EQ(run.tower->plan_text().find(": ref"), std::string::npos)
          << channels << " channels, batch " << batch << '\n'
          << run.tower->plan_text();
      if (batch > 3) continue;
      const auto wanted = run.wanted();
      run.run(run.gradient_program());
      expect_reference_gradients(run, wanted, relative_tolerance(net, kFloatEps));
    }
  }
}

TEST(Network, NamesThePiecesOfEveryConvolution) {
  using namespace model;
  const NetworkRun run(
      {.net = make_net("two convolutions", {7, 9, 3}, 7,
                       {Conv2d{"c1", 16, 3}, Relu{}, MaxPool{"p1", 3, 2}, Conv2d{"c2", 20, 5}, Relu{},
                        Linear{"l1", 7}, SoftmaxCrossEntropy{}}),
       .batch = 20,
       .conv = ConvMethod::direct});
  std::istringstream plan(run.tower->plan_text());
  int sums = 0;
  for (std::string line; std::getline(plan, line);) {
    if (!line.starts_with("c1 weight gradient") && !line.starts_with("c2 weight gradient")) continue;
    ++sums;
    EXPECT_TRUE(line.ends_with(", 10 samples at a time")) << line;
  }
  EXPECT_EQ(sums, 2);
}

TEST(Network, PredictsTheFirstOfEqualLogits) {
  NetworkRun run({.net = variants().front(), .batch = 4, .weight_scale = 0.0f});
  run.run(run.evaluate_program());
  for (const std::uint8_t prediction : run.predictions()) EXPECT_EQ(prediction, 0);
}

TEST(Network, LeavesPaddedSamplesOutOfTheLoss) {
  NetworkRun run({.net = variants().front(), .batch = 8});
  run.set_cursor(24);  // one sample is left of the 25
  run.run(run.evaluate_program());
  const float one = run.loss();
  EXPECT_GT(one, 0.0f);
  run.set_cursor(25);
  run.run(run.evaluate_program());
  EXPECT_EQ(run.loss(), 0.0f);
}

TEST(Network, UsesOneArenaForTrainingAndEvaluation) {
  NetworkRun run({.net = model::make_model("tutorial", {24, 24, 3}, 10), .batch = 16});
  run.gradient_program();
  const std::size_t training = run.arena.regions().size();
  run.evaluate_program();
  EXPECT_EQ(run.arena.regions().size(), training);
}

}  // namespace
}  // namespace cifar_mpi::cpu
