#include "cuda/planner.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "cifar_mpi/base/error.hpp"
#include "cuda/host_network.hpp"
#include "support/networks.hpp"

namespace cifar_mpi::cuda {
namespace {

using testing::HostNetwork;

NetPlan plan_of(const model::NetSpec& net, int batch = 2) {
  const model::ParamTable table = model::make_param_table(net);
  return plan_network({&net, &table, batch, engine::Precision::fp32});
}

/// Sums are made in double here and single steps in fp32, so a value passes a few roundings of 2^-24 per
/// layer; a gradient passes every layer twice.
double tolerance(const model::NetSpec& net) {
  return 8.0 * 0x1.0p-24 * std::sqrt(2.0 * static_cast<double>(net.layers.size()));
}

TEST(NetPlan, GivesTheReferenceGradientsForEveryOrderOfLayersWithItsFormulas) {
  constexpr int kBatch = 3;
  for (const model::NetSpec& net : test::orders_of_layers()) {
    const model::ParamTable table = model::make_param_table(net);
    reference::Params params;
    for (std::size_t p = 0; p < table.size(); ++p) {
      const auto count = static_cast<std::size_t>(table[p].shape.count());
      const double inputs = table[p].shape.rank() == 1
                                ? 16.0
                                : static_cast<double>(table[p].shape.count()) /
                                      static_cast<double>(table[p].shape[table[p].shape.rank() - 1]);
      params.push_back(testing::noise_of(count, static_cast<std::uint32_t>(p), 1.0 / std::sqrt(inputs)));
    }
    const auto x = testing::noise_of(static_cast<std::size_t>(kBatch * net.input.count()), 77);
    const std::vector<std::uint8_t> labels{1, 5, 2};
    const auto wanted = reference::loss_and_gradients(net, table, params, x, labels, kBatch, 8.0);
    HostNetwork network(net, table, kBatch);
    reference::Params found = network.run(x, params, labels, 8.0);
    EXPECT_NEAR(network.loss_sum, wanted.loss_sum, tolerance(net) * kBatch * std::log(net.classes))
        << net.name;
    for (std::size_t p = 0; p < table.size(); ++p) {
      const auto count = static_cast<std::size_t>(table[p].shape.count());
      ASSERT_GE(found[p].size(), count) << net.name << ' ' << table[p].name;
      for (std::size_t i = count; i < found[p].size(); ++i) {
        EXPECT_EQ(found[p][i], 0.0) << net.name << ": padding of " << table[p].name;
      }
      found[p].resize(count);
      EXPECT_LE(testing::relative_distance(found[p], wanted.grads[p]), tolerance(net))
          << net.name << ": " << table[p].name;
    }
  }
}

TEST(NetPlan, LaysParametersInTheOrderOfTheTableOnWholeCacheLines) {
  const model::NetSpec net = model::make_model("tutorial", {24, 24, 3}, 10);
  const model::ParamTable table = model::make_param_table(net);
  const engine::ParamLayout layout = plan_of(net).layout;
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

TEST(NetPlan, TakesARectifierIntoTheLayerBeforeAndItsMaskIntoTheOneBehind) {
  const NetPlan plan = plan_of(model::make_model("tutorial", {24, 24, 3}, 10));
  ASSERT_EQ(plan.stages.size(), 7u);
  const auto& conv1 = std::get<Affine>(plan.stages[0].work);
  EXPECT_TRUE(conv1.relu);
  EXPECT_FALSE(conv1.masks);
  EXPECT_FALSE(conv1.wants_grad_x);
  EXPECT_EQ(conv1.row, 80);
  EXPECT_TRUE(std::get<PoolNorm>(plan.stages[1].work).pool.relu);
  EXPECT_FALSE(std::get<PoolNorm>(plan.stages[1].work).norm.relu);
  EXPECT_TRUE(std::get<NormPool>(plan.stages[3].work).norm.relu);
  EXPECT_FALSE(std::get<NormPool>(plan.stages[3].work).pool.relu);
  EXPECT_TRUE(std::get<Affine>(plan.stages[4].work).masks);
  const auto& logits = std::get<Affine>(plan.stages[6].work);
  EXPECT_TRUE(logits.logits);
  EXPECT_FALSE(logits.masks);
  EXPECT_TRUE(plan.edges.back().fp32);
}

TEST(NetPlan, KeepsPoolingAndNormalizationApartWhereABlockHasNoRoomForBoth) {
  using namespace model;
  const auto stages_of = [](int width, int channels) {
    const NetPlan plan = plan_of(make_net(
        "wide", {8, width, 3}, 7,
        {Conv2d{"c", channels, 3}, MaxPool{"p1", 3, 2}, LocalResponseNorm{"n1", 4, 1.0f, 0.1f, 0.75f},
         LocalResponseNorm{"n2", 4, 1.0f, 0.1f, 0.75f}, MaxPool{"p2", 3, 2}, Linear{"l", 7},
         SoftmaxCrossEntropy{}}));
    std::string names;
    for (const Stage& stage : plan.stages) names += stage.name + ", ";
    return names;
  };
  EXPECT_EQ(stages_of(16, 64), "c, p1 and n1, n2 and p2, l, ");
  EXPECT_EQ(stages_of(64, 64), "c, p1, n1, n2 and p2, l, ");
  EXPECT_EQ(stages_of(256, 64), "c, p1, n1, n2, p2, l, ");
}

TEST(NetPlan, RefusesWhatNoKernelTakes) {
  using namespace model;
  const auto expect_refused = [](const NetSpec& net, int batch, const char* part) {
    try {
      plan_of(net, batch);
      ADD_FAILURE() << "planned " << net.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const Linear last{"last", 7};
  const SoftmaxCrossEntropy loss;
  expect_refused(make_net("wide", {20, 20, 1}, 7, {MaxPool{"p", 16, 2}, last, loss}), 2,
                 "p has a window of 16");
  expect_refused(make_net("deep", {1, 1, 5000}, 7, {LocalResponseNorm{"n", 1}, last, loss}), 2,
                 "5000 channels");
  expect_refused(make_net("none", {2, 2, 1}, 7, {last, loss}), 0, "batch of 0");
}

}  // namespace
}  // namespace cifar_mpi::cuda
