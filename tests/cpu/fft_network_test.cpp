#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/net_builder.hpp"
#include "cpu/dnnl.hpp"
#include "cpu/network_run.hpp"
#include "cpu/simd.hpp"
#include "support/networks.hpp"

/// Whole networks whose convolutions use the FFT wherever possible.
namespace cifar_mpi::cpu {
namespace {

using engine::ConvMethod;
using engine::Precision;
using engine::RunnerKind;

constexpr double kEps32 = 0x1.0p-24;

/// One convolution that the rule accepts and some that it rejects, also with a kernel of even size, after a
/// sum, without biases and frozen.
std::vector<model::NetSpec> networks() {
  std::vector<model::NetSpec> nets = test::orders_of_layers(16);
  nets.push_back(test::network_with_frozen_layers());
  nets.push_back(test::network_with_blocks(16));
  return nets;
}

/// The forward and inverse transforms add 2·log2(N) times, and 7 terms for odd lengths: more roundings per
/// layer than the longest sum of these small networks.
double tolerance(const model::NetSpec& net) { return 4.0 * relative_tolerance(net, kEps32); }

bool goes_by(const NetworkRun& run, const std::string& layer, const std::string& method) {
  return run.tower->plan_text().find("\n" + layer + ": " + method) != std::string::npos;
}
bool goes_by_fft(const NetworkRun& run, const std::string& layer) { return goes_by(run, layer, "FFT"); }
bool goes_by_winograd(const NetworkRun& run, const std::string& layer) {
  return goes_by(run, layer, "Winograd");
}

TEST(FftNetwork, HasTheReferenceGradientsForEveryOrderOfLayers) {
  int layers = 0;
  for (const model::NetSpec& net : networks()) {
    for (const int batch : {2, 5, 8, 24, 32}) {
      NetworkRun run({.net = net, .batch = batch, .conv = ConvMethod::fft});
      for (const auto& operation : net.operations) layers += goes_by_fft(run, operation.name) ? 1 : 0;
      const auto wanted = run.wanted();
      run.run(run.gradient_program());
      test::expect_reference_gradients(run, wanted, tolerance(run.spec.net));
    }
  }
  EXPECT_GE(layers, 5 * 10);
}

TEST(FftNetwork, HasTheReferenceGradientsOfTheTutorialAndOfResNet20) {
  const std::vector<std::string> by_fft{"stage1_block1_conv1", "stage2_block1_conv2", "stage3_block2_conv1"};
  for (const auto& [model, size, layers] :
       {std::tuple{"tutorial", 24, std::vector<std::string>{"conv2"}}, {"resnet20", 32, by_fft}}) {
    NetworkRun run(
        {.net = model::make_model(model, {size, size, 3}, 10), .batch = 3, .conv = ConvMethod::fft});
    for (const std::string& layer : layers)
      EXPECT_TRUE(goes_by_fft(run, layer)) << layer << '\n' << run.tower->plan_text();
    const auto wanted = run.wanted();
    run.run(run.gradient_program());
    test::expect_reference_gradients(run, wanted, tolerance(run.spec.net));
  }
}

TEST(FftNetwork, LeavesStridesToTheDirectKernels) {
  const NetworkRun run(
      {.net = model::make_model("resnet20", {32, 32, 3}, 10), .batch = 2, .conv = ConvMethod::fft});
  EXPECT_FALSE(goes_by_fft(run, "stage2_block1_conv1"));
  EXPECT_NE(run.tower->plan_text().find("stage2_block1_conv1 forward: "), std::string::npos);
}

TEST(FftNetwork, TakesTheWayThatWasAskedFor) {
  const model::NetSpec net = model::make_model("tutorial", {24, 24, 3}, 10);
  EXPECT_FALSE(goes_by_fft(NetworkRun({.net = net, .batch = 16, .conv = ConvMethod::direct}), "conv2"));
  if (widest_block() != 16) GTEST_SKIP() << "the rule is asked on processors with AVX-512";
  EXPECT_TRUE(goes_by_fft(NetworkRun({.net = net, .batch = 16}), "conv2"));
}

/// Two convolutions of 3x3.
model::NetSpec network_of_3x3(int side, int channels, bool with_bias = true) {
  model::NetBuilder net("3x3", {side, side, 3}, 10);
  model::Value x = net.image();
  for (const char* const name : {"first", "second"})
    x = net.relu(net.conv(x, {.name = name, .out_channels = channels, .kernel = 3, .with_bias = with_bias}));
  return net.softmax_cross_entropy(
      net.linear(net.global_avg_pool(x, {"pool"}), {.name = "classifier", .outputs = 10}));
}

TEST(FftNetwork, TakesKernelsOf3x3WhereTheyWereMeasuredToBeFaster) {
  if (!has_avx2()) GTEST_SKIP() << "the rule takes portable vectors nowhere";
  struct Measured {
    int side, channels, batch;
    bool by_fft;
    Precision precision = Precision::fp32;
  };
  for (const Measured& m : {Measured{8, 64, 64, true},
                            {8, 64, 4, false},
                            {16, 32, 64, true},
                            {16, 32, 16, true},
                            {32, 16, 16, false},
                            {32, 16, 64, has_avx512()},
                            {8, 256, 4, false},
                            {8, 512, 64, false},
                            {7, 64, 64, true},
                            {7, 64, 64, false, Precision::bf16},
                            {7, 256, 16, false, Precision::bf16},
                            {7, 256, 256, !has_amx(), Precision::bf16},
                            {14, 128, 256, !has_amx(), Precision::bf16},
                            {30, 56, 128, false, Precision::bf16}}) {
    if (m.precision == Precision::bf16 && !has_bf16()) continue;
    const NetworkRun run(
        {.net = network_of_3x3(m.side, m.channels), .batch = m.batch, .precision = m.precision});
    EXPECT_EQ(goes_by_fft(run, "second"), m.by_fft)
        << m.side << " pixels, " << m.channels << " channels, batch " << m.batch;
  }
  if (!has_bf16() || !has_avx512()) return;
  // Its 24 channels are padded to two blocks.
  const NetworkRun run({.net = model::make_model("fast94", {32, 32, 3}, 10),
                        .batch = 256,
                        .precision = Precision::bf16,
                        .draws = false});
  EXPECT_EQ(goes_by(run, "group1_conv1 + pool1", "FFT"), !has_amx()) << run.tower->plan_text();
}

TEST(WinogradNetwork, HasTheReferenceGradients) {
  std::vector<model::NetSpec> nets{model::make_model("resnet20", {32, 32, 3}, 10),
                                   network_of_3x3(9, 16, false), network_of_3x3(6, 48, false)};
  for (const model::NetSpec& net : nets) {
    const bool is_resnet = &net == nets.data();
    for (const int threads : {1, 2, 3}) {
      NetworkRun run({.net = net, .batch = 3, .threads = threads, .conv = ConvMethod::winograd});
      EXPECT_TRUE(goes_by_winograd(run, is_resnet ? "stage1_block1_conv1" : "second"))
          << run.tower->plan_text();
      const auto wanted = run.wanted();
      run.run(run.gradient_program());
      test::expect_reference_gradients(run, wanted, tolerance(run.spec.net));
    }
  }
}

TEST(WinogradNetwork, DeclaresEveryByteAndGivesTheSameBitsFromEveryRunnerOnAnyNumberOfThreads) {
  const model::NetSpec net = network_of_3x3(9, 16, false);
  for (const int batch : {1, 12}) {
    for (const int threads : {1, 2, 3, 7}) {
      const RunSpec spec{.net = net, .batch = batch, .threads = threads, .conv = ConvMethod::winograd};
      const auto first = NetworkRun(spec).results(RunnerKind::serial);
      for (const RunnerKind kind : {RunnerKind::lanes, RunnerKind::audit})
        EXPECT_TRUE(NetworkRun(spec).results(kind) == first) << batch << " images, " << threads << " threads";
    }
  }
}

TEST(WinogradNetwork, LeavesBiasesAndOtherKernelsToOtherMethods) {
  const auto takes = [](const model::NetSpec& net, const std::string& layer, Precision precision) {
    return goes_by_winograd(
        NetworkRun({.net = net, .batch = 2, .precision = precision, .conv = ConvMethod::winograd}), layer);
  };
  const model::NetSpec resnet = model::make_model("resnet20", {32, 32, 3}, 10);
  EXPECT_TRUE(takes(resnet, "stage2_block1_conv2", Precision::fp32));
  EXPECT_FALSE(takes(resnet, "stage2_block1_conv1", Precision::fp32));  // stride 2
  EXPECT_FALSE(takes(network_of_3x3(8, 16), "second", Precision::fp32));
  EXPECT_FALSE(takes(model::make_model("tutorial", {24, 24, 3}, 10), "conv2", Precision::fp32));
  if (has_bf16()) {
    EXPECT_TRUE(takes(resnet, "stage2_block1_conv2", Precision::bf16));
  }
}

TEST(WinogradNetwork, IsTakenWhereItWasMeasuredToBeFaster) {
  if (!has_avx512()) GTEST_SKIP() << "the rule takes it only with AVX-512";
  struct Measured {
    int side, channels, batch;
    bool takes;
    Precision precision = Precision::fp32;
  };
  for (const Measured& m : {Measured{32, 16, 128, false},
                            {16, 32, 128, true},
                            {8, 64, 128, true},
                            {8, 64, 2, false},
                            {4, 512, 64, true},
                            {4, 512, 8, false},
                            {3, 256, 128, true},
                            {3, 256, 16, false},
                            {2, 256, 128, false},
                            {32, 16, 128, false, Precision::bf16},
                            {16, 32, 128, !has_amx(), Precision::bf16},
                            {8, 64, 128, !has_amx(), Precision::bf16},
                            {4, 512, 64, !has_amx(), Precision::bf16}}) {
    if (m.precision == Precision::bf16 && !has_bf16()) continue;
    const model::NetSpec net = network_of_3x3(m.side, m.channels, false);
    const RunSpec spec{.net = net, .batch = m.batch, .precision = m.precision};
    EXPECT_EQ(goes_by_winograd(NetworkRun(spec), "second"), m.takes)
        << m.side << " pixels, " << m.channels << " channels, batch " << m.batch;
    if (m.precision == Precision::bf16) continue;  // Fourier transforms do not cut its images
    const RunSpec asked{.net = net, .batch = m.batch, .conv = ConvMethod::fft};
    EXPECT_TRUE(goes_by_fft(NetworkRun(asked), "second"));
  }
}

/// A convolution of 3x3 before a pooling whose output is doubled. With `twice` the output is that of two equal poolings,
/// so the convolution has two readers and takes neither into its group.
model::NetSpec network_with_pool(int side, int channels, bool relu, const model::MaxPool& pool,
                                 bool twice = false) {
  model::NetBuilder net("pooled", {side, side - 1, 3}, 10);
  model::Value x = net.relu(net.conv(net.image(), {.name = "first", .out_channels = channels, .kernel = 3}));
  x = net.conv(x, {.name = "second", .out_channels = 32, .kernel = 3, .with_bias = false});
  if (relu) x = net.relu(x);
  const model::Value pooled = net.max_pool(x, pool);
  model::MaxPool other = pool;
  other.name = "other";
  x = net.add(pooled, twice ? net.max_pool(x, other) : pooled, {"sum"});
  return net.softmax_cross_entropy(
      net.linear(net.global_avg_pool(x, {"mean"}), {.name = "classifier", .outputs = 10}));
}

/// With 24 channels the last block of AVX-512 is padded.
TEST(FftNetwork, PoolsWhatItComputesWithTheReferenceGradientsAndDeclaresEveryByte) {
  if (!has_avx2()) GTEST_SKIP() << "blocks of channels need vectors of 8";
  const model::MaxPool halves{.name = "pool", .kernel = 2, .stride = 2, .valid = true};
  for (const ConvMethod conv : {ConvMethod::fft, ConvMethod::winograd}) {
    for (const auto& [side, channels, relu, pool] :
         {std::tuple{7, 24, false, halves}, {7, 32, true, halves}, {17, 24, true, {"pool", 3, 2}}}) {
      const model::NetSpec net = network_with_pool(side, channels, relu, pool);
      for (const auto& [batch, threads, precision] : {std::tuple{2, 1, Precision::fp32},
                                                      {2, 2, Precision::fp32},
                                                      {2, 5, Precision::fp32},
                                                      {24, 1, Precision::fp32},
                                                      {24, 2, Precision::fp32},
                                                      {24, 5, Precision::fp32},
                                                      {2, 1, Precision::bf16},
                                                      {24, 2, Precision::bf16}}) {
        if (precision == Precision::bf16 && !has_bf16()) continue;
        SCOPED_TRACE(concat(side, " pixels, ", channels, " channels, batch ", batch, ", ", threads,
                            " threads, ", to_string(precision)));
        const RunSpec spec{
            .net = net, .batch = batch, .precision = precision, .threads = threads, .conv = conv};
        NetworkRun run(spec);
        EXPECT_TRUE(goes_by(run, "second + pool", conv == ConvMethod::fft ? "FFT" : "Winograd"))
            << run.tower->plan_text();
        const auto wanted = run.wanted();
        run.run(run.gradient_program());
        if (precision == Precision::fp32) test::expect_reference_gradients(run, wanted, tolerance(net));
        const auto found = NetworkRun(spec).results(RunnerKind::audit);
        EXPECT_TRUE(found == NetworkRun(spec).results(RunnerKind::lanes));
        if (threads > 1) continue;
        RunSpec apart = spec;
        apart.net = network_with_pool(side, channels, relu, pool, true);
        NetworkRun unfused(apart);
        EXPECT_TRUE(goes_by(unfused, "second", conv == ConvMethod::fft ? "FFT" : "Winograd"))
            << unfused.tower->plan_text();
        unfused.run(unfused.gradient_program());
        EXPECT_EQ(unfused.loss(), run.loss());
        EXPECT_TRUE(unfused.logical(unfused.grads()) == run.logical(run.grads())) << "bit by bit";
      }
    }
  }
}

TEST(FftNetwork, KeepsNoSpectraOnOneThreadWhereTheSumsOfTheWeightGradientAreSmall) {
  if (!has_avx2()) GTEST_SKIP() << "blocks of channels need vectors of 8";
  for (const int threads : {1, 2}) {
    NetworkRun run({.net = model::make_model("resnet20", {32, 32, 3}, 10),
                    .batch = 4,
                    .threads = threads,
                    .conv = ConvMethod::fft});
    const engine::StepProgram program = run.gradient_program();
    const auto has_task = [&](const std::string& name) {
      return std::any_of(program.tasks().begin(), program.tasks().end(),
                         [&](const engine::Task& task) { return task.name == name; });
    };
    for (const std::string layer : {"stage1_block1_conv1", "stage2_block2_conv1", "stage3_block2_conv1"}) {
      const bool keeps_none = threads == 1 && !layer.starts_with("stage3");
      EXPECT_EQ(has_task(layer + " gradients"), keeps_none) << layer << ", " << threads << " threads";
      EXPECT_EQ(has_task(layer + " weight gradient"), !keeps_none) << layer << ", " << threads << " threads";
    }
  }
}

TEST(FftNetwork, DeclaresEveryByteItTouches) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    if (precision == Precision::bf16 && !has_bf16()) continue;
    for (const model::NetSpec& net : networks()) {
      for (const int batch : {3, 16, 24}) {
        const RunSpec spec{.net = net, .batch = batch, .precision = precision, .conv = ConvMethod::fft};
        EXPECT_TRUE(NetworkRun(spec).results(RunnerKind::audit) ==
                    NetworkRun(spec).results(RunnerKind::serial))
            << net.name << ", batch " << batch << ", " << to_string(precision);
      }
    }
  }
}

TEST(FftNetwork, GivesTheSameBitsFromEveryRunner) {
  for (const int threads : {1, 2}) {
    const RunSpec spec{.net = model::make_model("tutorial", {24, 24, 3}, 10),
                       .batch = 32,
                       .threads = threads,
                       .conv = ConvMethod::fft};
    const auto first = NetworkRun(spec).results(RunnerKind::serial);
    for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes, RunnerKind::audit})
      EXPECT_TRUE(NetworkRun(spec).results(kind) == first) << threads << " threads";
  }
}

/// The distances of all gradients in bf16 from those of the loops.
std::vector<double> bf16_distances(const model::NetSpec& net, ConvMethod conv, const std::string& layer) {
  NetworkRun run({.net = net, .batch = 4, .precision = Precision::bf16, .conv = conv});
  EXPECT_EQ(goes_by_fft(run, layer), conv == ConvMethod::fft);
  EXPECT_EQ(goes_by_winograd(run, layer), conv == ConvMethod::winograd);
  const auto exact = run.wanted();
  run.run(run.gradient_program());
  const reference::Params found = run.logical(run.grads());
  std::vector<double> all;
  for (std::size_t p = 0; p < found.size(); ++p)
    all.push_back(reference::gradient_distance(run.table, found[p], exact.grads, p));
  return all;
}

/// In bf16 the values between layers are rounded as with direct convolutions, so the errors of the gradients
/// are about the same: at most twice as large, since single roundings decide poolings (see
/// Network.HasTheReferenceGradientsInBf16).
void expect_no_more_rounding_in_bf16(const model::NetSpec& net, ConvMethod conv, const std::string& layer) {
  if (!has_bf16()) GTEST_SKIP() << "LOUD: this cpu has no bf16 arithmetic, bf16 is NOT tested here";
  const std::vector<double> found = bf16_distances(net, conv, layer),
                            direct = bf16_distances(net, ConvMethod::direct, layer);
  for (std::size_t p = 0; p < direct.size(); ++p) EXPECT_LE(found[p], 2.0 * direct[p]) << "parameter " << p;
}

TEST(FftNetwork, RoundsInBf16NoMoreThanDirectConvolutions) {
  expect_no_more_rounding_in_bf16(model::make_model("tutorial", {24, 24, 3}, 10), ConvMethod::fft, "conv2");
}

TEST(WinogradNetwork, RoundsInBf16NoMoreThanDirectConvolutions) {
  expect_no_more_rounding_in_bf16(network_of_3x3(9, 16, false), ConvMethod::winograd, "second");
}

}  // namespace
}  // namespace cifar_mpi::cpu
