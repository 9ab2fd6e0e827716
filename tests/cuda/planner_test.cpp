#include "cuda/planner.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cifar_mpi/lower/tower.hpp"
#include "cuda/value_type.hpp"
#include "support/errors.hpp"
#include "support/networks.hpp"

namespace cifar_mpi::cuda {
namespace {

/// A group as planned; it has no tasks.
struct PlannedGroup final : engine::Group {
  explicit PlannedGroup(GroupPlan made) : plan(std::move(made)) {}
  const engine::Contract& contract() const override { return plan.contract; }
  engine::GroupTasks tasks(const engine::Operands&, engine::Arena&) const override { return {}; }
  GroupPlan plan;
};

using Groups = std::vector<const PlannedGroup*>;

/// Keeps the groups in order; the tower owns them.
class PlanKernels final : public engine::Kernels {
 public:
  PlanKernels(int batch, Groups& groups) : batch_(batch), groups_(groups) {}
  std::unique_ptr<engine::Group> plan(const engine::Chain& chain) override {
    GroupPlan plan = plan_group(chain, batch_, engine::Precision::fp32);
    const std::vector<GroupPlan> tail = std::exchange(plan.tail, {});
    auto group = kept(std::move(plan));
    return tail.empty() ? std::move(group)
                        : join_tail(std::move(group), kept(tail.front()), [] { return false; });
  }
  std::unique_ptr<engine::Group> reorder(std::string, const Extent&, const engine::ValueFormat&,
                                         const engine::ValueFormat&, bool) override {
    throw std::logic_error("there are no other formats");
  }
  engine::Task add(std::string, const engine::Format&, std::byte*, const std::byte*,
                   const std::byte*) const override {
    return {};
  }
  engine::Task mask(std::string, const engine::Format&, const std::byte*, const std::byte*,
                    std::byte*) const override {
    return {};
  }
  std::string finalize() override { return ""; }

 private:
  std::unique_ptr<engine::Group> kept(GroupPlan plan) {
    auto group = std::make_unique<PlannedGroup>(std::move(plan));
    groups_.push_back(group.get());
    return group;
  }

  int batch_;
  Groups& groups_;
};

class PlanEnds final : public engine::Ends {
 public:
  explicit PlanEnds(const engine::Format& images) : images_(images) {}
  engine::ValueFormat images() const override { return {images_, images_}; }
  engine::ValueFormat logits(const engine::ValueFormat& have) const override { return have; }
  engine::Task control(const engine::TrainBinding&) const override { return {}; }
  engine::Task train_input(const engine::TrainBinding&, std::byte*, std::uint8_t*) const override {
    return {};
  }
  engine::Task train_loss(const engine::TrainBinding&, const engine::Logits&, const std::uint8_t*,
                          std::byte*) const override {
    return {};
  }
  engine::Task compute_time(engine::RankFacts*) const override { return {}; }
  engine::Task evaluate_input(const engine::EvaluateBinding&, std::byte*, std::uint8_t*) const override {
    return {};
  }
  engine::Task evaluate_loss(const engine::EvaluateBinding&, const engine::Logits&,
                             const std::uint8_t*) const override {
    return {};
  }

 private:
  engine::Format images_;
};

/// A network planned, without its programs.
struct Planned {
  explicit Planned(const model::NetSpec& spec)
      : net(spec),
        table(model::make_param_table(net)),
        tower({std::make_unique<PlanKernels>(kBatch, groups),
               std::make_unique<PlanEnds>(activations(kBatch, net.input, ValueType::fp32))},
              {&net, &table, kBatch, {}}) {}
  const Work& work(std::size_t i) const { return groups.at(i)->plan.work; }
  const engine::Contract& contract(std::size_t i) const { return groups.at(i)->plan.contract; }
  std::string names() const {
    std::string names;
    for (const PlannedGroup* group : groups) names += group->plan.contract.name + ", ";
    return names;
  }

  static constexpr int kBatch = 2;
  model::NetSpec net;
  model::ParamTable table;
  Groups groups;
  lower::Tower tower;
};

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

TEST(CudaPlan, TakesARectifierIntoThePoolingOrNormalizationAfterItElseIntoTheLayerBefore) {
  const Planned plan(model::make_model("tutorial", {24, 24, 3}, 10));
  ASSERT_EQ(plan.groups.size(), 7u);
  const auto& conv1 = std::get<Affine>(plan.work(0));
  EXPECT_FALSE(conv1.relu);
  EXPECT_TRUE(conv1.has_tail);
  EXPECT_FALSE(conv1.wants_grad_x);
  EXPECT_EQ(conv1.row, 80);
  EXPECT_TRUE(std::holds_alternative<PoolLrn>(plan.work(1)));
  EXPECT_TRUE(std::holds_alternative<LrnPool>(plan.work(3)));
  for (const std::size_t i : {1, 3}) {
    EXPECT_EQ(plan.contract(i).mask_src, engine::ReluMask::takes);
    EXPECT_EQ(plan.contract(i).operations, 2u);
  }
  EXPECT_TRUE(std::get<Affine>(plan.work(4)).relu);
  EXPECT_TRUE(plan.contract(4).can_mask_dst);
  EXPECT_EQ(plan.contract(4).operations, 2u);
  EXPECT_TRUE(std::get<Affine>(plan.work(6)).logits);
  EXPECT_FALSE(plan.contract(6).can_mask_dst);
}

TEST(CudaPlan, TakesTheRectifierAfterABatchNormButNotThatOfAConvolutionWithoutBiases) {
  model::NetBuilder net("bn", {9, 8, 3}, 7);
  model::Value x =
      net.conv(net.image(), {.name = "c1", .out_channels = 8, .kernel = 3, .stride = 2, .with_bias = false});
  x = net.relu(net.batch_norm(x, {.name = "bn1", .epsilon = 0.25f}));
  x = net.relu(net.conv(x, {.name = "c2", .out_channels = 8, .kernel = 2, .stride = 3, .with_bias = false}));
  x = net.batch_norm(net.shortcut(x, {"s", 12, 2}), {.name = "bn2"});
  const Planned plan(net.softmax_cross_entropy(net.linear(net.global_avg_pool(x, {"mean"}), {"l", 7})));
  EXPECT_EQ(plan.names(), "c1, bn1, c2, relu 4, s, bn2, mean, l, ");
  const auto& c1 = std::get<Affine>(plan.work(0));
  EXPECT_EQ(c1.out, (Extent{5, 4, 8}));
  EXPECT_EQ(c1.rows(2), 2 * 5 * 4);
  EXPECT_EQ(c1.in_rows(2), 2 * 9 * 8);
  EXPECT_EQ(plan.contract(0).masters.size(), 1u);
  const auto& bn1 = std::get<BatchNorm>(plan.work(1));
  EXPECT_TRUE(bn1.relu);
  EXPECT_EQ(bn1.rows, 2 * 5 * 4);
  EXPECT_EQ(bn1.epsilon, 0.25f);
  EXPECT_FALSE(plan.contract(1).relu_at_end);
  EXPECT_EQ(plan.contract(1).masters.size(), 4u);
  EXPECT_FALSE(std::get<Affine>(plan.work(2)).relu);
  EXPECT_FALSE(std::get<BatchNorm>(plan.work(5)).relu);
}

TEST(CudaPlan, KeepsPoolingAndNormalizationApartWhereABlockHasNoRoomForBoth) {
  using namespace model;
  const auto stages_of = [](int width, int channels) {
    return Planned(make_net("wide", {8, width, 3}, 7,
                            {Conv2d{"c", channels, 3}, MaxPool{"p1", 3, 2},
                             LocalResponseNorm{"n1", 4, 1.0f, 0.1f, 0.75f},
                             LocalResponseNorm{"n2", 4, 1.0f, 0.1f, 0.75f}, MaxPool{"p2", 3, 2},
                             Linear{"l", 7}, SoftmaxCrossEntropy{}}))
        .names();
  };
  EXPECT_EQ(stages_of(16, 64), "c, p1 and n1, n2 and p2, l, ");
  EXPECT_EQ(stages_of(64, 64), "c, p1, n1, n2 and p2, l, ");
  EXPECT_EQ(stages_of(256, 64), "c, p1, n1, n2, p2, l, ");
}

TEST(CudaPlan, RefusesWhatNoKernelTakes) {
  using namespace model;
  const auto expect_refused = [](const NetSpec& net, const char* part) {
    expect_error(ErrorKind::usage, {part}, [&] { const Planned planned(net); });
  };
  const Linear last{"last", 7};
  const SoftmaxCrossEntropy loss;
  expect_refused(make_net("wide", {20, 20, 1}, 7, {MaxPool{"p", 16, 2}, last, loss}), "p has a window of 16");
  expect_refused(make_net("deep", {1, 1, 5000}, 7, {LocalResponseNorm{"n", 1}, last, loss}), "5000 channels");
}

}  // namespace
}  // namespace cifar_mpi::cuda
