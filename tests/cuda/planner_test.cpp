#include "cuda/planner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cifar_mpi/base/error.hpp"
#include "cuda/host_network.hpp"
#include "support/networks.hpp"
#include "support/random_networks.hpp"

namespace cifar_mpi::cuda {
namespace {

/// A network planned, without its programs.
struct Planned {
  Planned(const model::NetSpec& spec, int batch = 2)
      : net(spec), table(model::make_param_table(net)), tower(kernels_of(batch), {&net, &table, batch, {}}) {}

  engine::TowerKernels kernels_of(int batch) {
    auto made = std::make_unique<testing::HostKernels>(batch);
    kernels = made.get();
    return {std::move(made),
            std::make_unique<testing::HostEnds>(
                reference::Array(static_cast<std::size_t>(batch * net.input.count())),
                std::vector<std::uint8_t>(static_cast<std::size_t>(batch)), net.classes, loss)};
  }
  const testing::HostGroup& group(std::size_t i) const { return *kernels->groups.at(i); }

  model::NetSpec net;
  model::ParamTable table;
  testing::HostKernels* kernels = nullptr;
  double loss = 0.0;
  lower::Tower tower;
};

/// Sums are made in double here and single steps in fp32, so a value passes a few roundings of 2^-24 per
/// layer; a gradient passes every layer twice.
double tolerance(const model::NetSpec& net) { return 8.0 * 0x1.0p-24 * reference::layers_passed(net); }

/// Groups pass on fp32 values, so that both sides choose alike where two values of a window, or zero and a
/// value, are nearly equal.
reference::Array to_fp32(reference::Array values) {
  for (double& value : values) value = static_cast<double>(static_cast<float>(value));
  return values;
}

/// Gradients by ParamTable index in memory order, conv weights with their zero rows; for running parameters
/// the batch's statistics.
reference::Params gradients_of(const model::NetSpec& net, const model::ParamTable& table,
                               const reference::Params& params, const reference::Array& x,
                               const std::vector<std::uint8_t>& labels, double& loss_sum) {
  const int batch = static_cast<int>(labels.size());
  lower::Tower tower({std::make_unique<testing::HostKernels>(batch),
                      std::make_unique<testing::HostEnds>(x, labels, net.classes, loss_sum)},
                     {&net, &table, batch, engine::Precision::fp32});
  const engine::ParamLayout& layout = tower.layout();
  std::vector<float> block(layout.floats), grads(layout.floats, -7.0f);
  for (std::size_t p = 0; p < table.size(); ++p) {
    const std::vector<float> logical(params[p].begin(), params[p].end());
    tower.from_logical(p, logical,
                       std::span(block).subspan(layout.entries[p].offset, layout.entries[p].floats));
  }
  engine::TrainBinding binding;
  binding.control_layout.statistics_floats = layout.running_floats;
  std::vector<float> control(binding.control_layout.floats());
  binding.params = block.data();
  binding.control = control.data();
  binding.grads = grads.data();
  binding.global_batch = 8;
  engine::Arena arena([](std::size_t bytes) { return allocate_host(bytes); });
  engine::Lane lane;
  for (const engine::Task& task : tower.train_tasks(binding, arena)) task.start(lane);
  std::copy(control.begin() + static_cast<std::ptrdiff_t>(binding.control_layout.statistics()), control.end(),
            grads.begin() + static_cast<std::ptrdiff_t>(layout.running_begin()));
  reference::Params found;
  for (const auto& entry : layout.entries) {
    const auto first = grads.begin() + static_cast<std::ptrdiff_t>(entry.offset);
    found.emplace_back(first, first + static_cast<std::ptrdiff_t>(entry.floats));
  }
  return found;
}

TEST(CudaPlan, GivesTheReferenceGradientsForEveryOrderOfLayersWithItsFormulas) {
  constexpr int kBatch = 3;
  std::vector<model::NetSpec> nets = test::orders_of_layers();
  nets.push_back(test::network_with_frozen_layers());
  for (const int channels : {16, 12}) nets.push_back(test::network_with_blocks(channels));
  // With 32x32 pixels one of the units is so near zero that rounding decides its sign.
  nets.push_back(model::make_model("resnet20", {16, 16, 3}, 10));
  for (std::uint64_t seed = 0; seed < 300; ++seed) nets.push_back(test::RandomNetwork(seed).make());
  for (const model::NetSpec& net : nets) {
    const model::ParamTable table = model::make_param_table(net);
    reference::Params params;
    for (std::size_t p = 0; p < table.size(); ++p) {
      const auto count = static_cast<std::size_t>(table[p].shape.count());
      const double inputs = table[p].shape.rank() == 1
                                ? 16.0
                                : static_cast<double>(table[p].shape.count()) /
                                      static_cast<double>(table[p].shape[table[p].shape.rank() - 1]);
      params.push_back(testing::noise_of(count, static_cast<std::uint32_t>(p), 1.0 / std::sqrt(inputs)));
      if (table[p].part == model::ParamPart::scale) {
        for (double& value : params.back()) value += 1.0;
      }
    }
    const auto x = testing::noise_of(static_cast<std::size_t>(kBatch * net.input.count()), 77);
    const std::vector<std::uint8_t> labels{1, 255, 0};
    const auto wanted = reference::loss_and_gradients(net, table, params, x, labels, kBatch, 8.0, to_fp32);
    double loss_sum = 0.0;
    reference::Params found = gradients_of(net, table, params, x, labels, loss_sum);
    EXPECT_NEAR(loss_sum, wanted.loss_sum, tolerance(net) * kBatch * std::log(net.classes)) << net.name;
    for (std::size_t p = 0; p < table.size(); ++p) {
      const auto count = static_cast<std::size_t>(table[p].shape.count());
      if (table[p].role == model::ParamRole::frozen) {
        EXPECT_EQ(std::count(found[p].begin(), found[p].end(), -7.0), std::ssize(found[p])) << table[p].name;
        continue;
      }
      const std::size_t weights = table[p].part == model::ParamPart::weights ? found[p].size() : count;
      ASSERT_GE(found[p].size(), count) << net.name << ' ' << table[p].name;
      for (std::size_t i = count; i < weights; ++i) {
        EXPECT_TRUE(found[p][i] == 0.0 || found[p][i] == -7.0)
            << net.name << ": padding of " << table[p].name;
      }
      found[p].resize(count);
      EXPECT_LE(reference::gradient_distance(table, found[p], wanted.grads, p), tolerance(net))
          << net.name << ": " << table[p].name;
    }
  }
}

TEST(CudaPlan, LaysParametersInTheOrderOfTheTableOnWholeCacheLines) {
  const model::NetSpec net = model::make_model("tutorial", {24, 24, 3}, 10);
  const Planned planned(net);
  const model::ParamTable& table = planned.table;
  const engine::ParamLayout& layout = planned.tower.layout();
  ASSERT_EQ(layout.entries.size(), table.size());
  std::size_t end = 0;
  for (std::size_t p = 0; p < table.size(); ++p) {
    EXPECT_EQ(layout.entries[p].offset, end) << table[p].name;
    EXPECT_EQ(layout.entries[p].floats % 16, 0u) << table[p].name;
    EXPECT_GE(layout.entries[p].floats, static_cast<std::size_t>(table[p].shape.count())) << table[p].name;
    end += layout.entries[p].floats;
  }
  EXPECT_EQ(layout.floats, end);
}

TEST(CudaPlan, TakesARectifierIntoThePoolingOrNormalizationBehindElseIntoTheLayerBefore) {
  const Planned plan(model::make_model("tutorial", {24, 24, 3}, 10));
  ASSERT_EQ(plan.kernels->groups.size(), 7u);
  const auto& conv1 = std::get<Affine>(plan.group(0).work());
  EXPECT_FALSE(conv1.relu);
  EXPECT_TRUE(conv1.has_tail);
  EXPECT_FALSE(conv1.wants_grad_x);
  EXPECT_EQ(conv1.row, 80);
  EXPECT_TRUE(std::holds_alternative<PoolLrn>(plan.group(1).work()));
  EXPECT_TRUE(std::holds_alternative<LrnPool>(plan.group(3).work()));
  for (const std::size_t i : {1, 3}) {
    EXPECT_EQ(plan.group(i).contract().mask_src, engine::ReluMask::takes);
    EXPECT_EQ(plan.group(i).contract().operations, 2u);
  }
  EXPECT_TRUE(std::get<Affine>(plan.group(4).work()).relu);
  EXPECT_TRUE(plan.group(4).contract().can_mask_dst);
  EXPECT_EQ(plan.group(4).contract().operations, 2u);
  EXPECT_TRUE(std::get<Affine>(plan.group(6).work()).logits);
  EXPECT_FALSE(plan.group(6).contract().can_mask_dst);
}

TEST(CudaPlan, TakesTheRectifierBehindABatchNormButNotThatOfAConvolutionWithoutBiases) {
  model::NetBuilder net("bn", {9, 8, 3}, 7);
  model::Value x =
      net.conv(net.image(), {.name = "c1", .out_channels = 8, .kernel = 3, .stride = 2, .with_bias = false});
  x = net.relu(net.batch_norm(x, {.name = "bn1", .epsilon = 0.25f}));
  x = net.relu(net.conv(x, {.name = "c2", .out_channels = 8, .kernel = 2, .stride = 3, .with_bias = false}));
  x = net.batch_norm(net.shortcut(x, {"s", 12, 2}), {.name = "bn2"});
  const Planned plan(net.softmax_cross_entropy(net.linear(net.global_avg_pool(x, {"mean"}), {"l", 7})));
  std::string names;
  for (const testing::HostGroup* group : plan.kernels->groups) names += group->contract().name + ", ";
  EXPECT_EQ(names, "c1, bn1, c2, relu 4, s, bn2, mean, l, ");
  const auto& c1 = std::get<Affine>(plan.group(0).work());
  EXPECT_EQ(c1.out, (Extent{5, 4, 8}));
  EXPECT_EQ(c1.rows(2), 2 * 5 * 4);
  EXPECT_EQ(c1.in_rows(2), 2 * 9 * 8);
  EXPECT_EQ(plan.group(0).contract().masters.size(), 1u);
  const auto& bn1 = std::get<BatchNorm>(plan.group(1).work());
  EXPECT_TRUE(bn1.relu);
  EXPECT_EQ(bn1.rows, 2 * 5 * 4);
  EXPECT_EQ(bn1.epsilon, 0.25f);
  EXPECT_FALSE(plan.group(1).contract().relu_at_end);
  EXPECT_EQ(plan.group(1).contract().masters.size(), 4u);
  EXPECT_FALSE(std::get<Affine>(plan.group(2).work()).relu);
  EXPECT_FALSE(std::get<BatchNorm>(plan.group(5).work()).relu);
}

TEST(CudaPlan, KeepsPoolingAndNormalizationApartWhereABlockHasNoRoomForBoth) {
  using namespace model;
  const auto stages_of = [](int width, int channels) {
    const Planned plan(make_net(
        "wide", {8, width, 3}, 7,
        {Conv2d{"c", channels, 3}, MaxPool{"p1", 3, 2}, LocalResponseNorm{"n1", 4, 1.0f, 0.1f, 0.75f},
         LocalResponseNorm{"n2", 4, 1.0f, 0.1f, 0.75f}, MaxPool{"p2", 3, 2}, Linear{"l", 7},
         SoftmaxCrossEntropy{}}));
    std::string names;
    for (const testing::HostGroup* group : plan.kernels->groups) names += group->contract().name + ", ";
    return names;
  };
  EXPECT_EQ(stages_of(16, 64), "c, p1 and n1, n2 and p2, l, ");
  EXPECT_EQ(stages_of(64, 64), "c, p1, n1, n2 and p2, l, ");
  EXPECT_EQ(stages_of(256, 64), "c, p1, n1, n2, p2, l, ");
}

TEST(CudaPlan, RefusesWhatNoKernelTakes) {
  using namespace model;
  const auto expect_refused = [](const NetSpec& net, const char* part) {
    try {
      const Planned planned(net);
      ADD_FAILURE() << "planned " << net.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const Linear last{"last", 7};
  const SoftmaxCrossEntropy loss;
  expect_refused(make_net("wide", {20, 20, 1}, 7, {MaxPool{"p", 16, 2}, last, loss}), "p has a window of 16");
  expect_refused(make_net("deep", {1, 1, 5000}, 7, {LocalResponseNorm{"n", 1}, last, loss}), "5000 channels");
}

}  // namespace
}  // namespace cifar_mpi::cuda
