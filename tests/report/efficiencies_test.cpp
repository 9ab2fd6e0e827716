#include "cifar_mpi/report/efficiencies.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "cifar_mpi/report/step_budget.hpp"
#include "report/made_timeline.hpp"
#include "report/replay.hpp"

namespace cifar_mpi::report {
namespace {

using namespace made;

void expect_products(const Efficiencies& e) {
  EXPECT_NEAR(e.parallel, e.load_balance * e.communication, 1e-12);
  EXPECT_NEAR(e.communication, e.serialization * e.transfer, 1e-12);
  for (const double number :
       {e.parallel, e.load_balance, e.communication, e.serialization, e.transfer, e.load_balance_per_step}) {
    EXPECT_GT(number, 0.0);
    EXPECT_LE(number, 1.0);
  }
  EXPECT_LE(e.load_balance_per_step, e.load_balance + 1e-12);
}

TEST(Efficiencies, ArePerfectWhereAllComputeAllTheTime) {
  const Line line = {{kForward, 30}, {kBackward1, 20}, {kUpdate0, 2}};
  const Efficiencies e = efficiencies(timeline({{line, line, line}, {line, line, line}}));
  EXPECT_EQ(e.ranks, 3);
  EXPECT_EQ(e.steps, 2);
  EXPECT_DOUBLE_EQ(e.step_ms, 52.0);
  for (const double number :
       {e.parallel, e.load_balance, e.communication, e.serialization, e.transfer, e.load_balance_per_step})
    EXPECT_DOUBLE_EQ(number, 1.0);
  EXPECT_FALSE(e.computation_scaling);
}

// Rank 1 computes 60 ms, the others 50 and wait 10 for it in bucket 0: U = 50, 60, 50, 50, T = 60.
// Load balance 52.5 / 60; T_ideal = 60, because the wait is the last rank's work.
TEST(Efficiencies, PutOneSlowRankUnderLoadBalance) {
  const Line fast = {{kBackward1, 45}, {kBucket0, 10}, {kUpdate0, 5}};
  const Line slow = {{kBackward1, 55}, {kUpdate0, 5}};
  const Efficiencies e = efficiencies(timeline({{fast, slow, fast, fast}}));
  EXPECT_NEAR(e.parallel, 0.875, 1e-12);
  EXPECT_NEAR(e.load_balance, 0.875, 1e-12);
  EXPECT_NEAR(e.load_balance_per_step, 0.875, 1e-12);
  EXPECT_NEAR(e.serialization, 1.0, 1e-12);
  EXPECT_NEAR(e.transfer, 1.0, 1e-12);
}

// Rank 0 works 30 ms before bucket 0 and 10 after it, rank 1 10 and 30: each 40, and 60 together; of these rank 0
// waits 20 at the end (in bucket 1), rank 1 20 in bucket 0. Nothing is lost on the network.
TEST(Efficiencies, PutTurnTakingUnderSerialization) {
  const Line first = {{kBackward1, 30}, {kUpdate0, 10}, {kBucket1, 20}};
  const Line second = {{kBackward1, 10}, {kBucket0, 20}, {kUpdate0, 30}};
  Timeline chain = timeline({{first, second}});
  chain.tasks[kBucket1].after = {kUpdate0};
  const Efficiencies e = efficiencies(chain);
  EXPECT_NEAR(e.parallel, 40.0 / 60.0, 1e-12);
  EXPECT_NEAR(e.load_balance, 1.0, 1e-12);
  EXPECT_NEAR(e.serialization, 40.0 / 60.0, 1e-12);
  EXPECT_NEAR(e.transfer, 1.0, 1e-12);
  EXPECT_NEAR(e.load_balance_per_step, 1.0, 1e-12);
}

// Both ranks work 40 ms, wait 16 for the network and work 4: U = 44, T = 60, T_ideal = 44.
TEST(Efficiencies, PutWaitingForTheNetworkUnderTransfer) {
  const Line line = {{kBackward1, 40}, {kBucket0, 16}, {kUpdate0, 4}};
  const Efficiencies e = efficiencies(timeline({{line, line}}));
  EXPECT_NEAR(e.parallel, 44.0 / 60.0, 1e-12);
  EXPECT_NEAR(e.load_balance, 1.0, 1e-12);
  EXPECT_NEAR(e.serialization, 1.0, 1e-12);
  EXPECT_NEAR(e.transfer, 44.0 / 60.0, 1e-12);
}

// A collective is polled 1 ms in the middle of backward, which a network without time does not need.
TEST(Efficiencies, PutLookingAfterACollectiveUnderTransfer) {
  const Line line = {{kBackward1, 30}, {kBackward2, 9}, {kBucket0, 1}, {kBackward2, 9}, {kUpdate0, 1}};
  const Efficiencies e = efficiencies(timeline({{line, line}}));
  EXPECT_NEAR(e.transfer, 49.0 / 50.0, 1e-12);
  EXPECT_NEAR(e.serialization, 1.0, 1e-12);
}

// In step 0 rank 0 computes 50 and rank 1 40, in step 1 the other way round: U = 90, 90, T = 100 = T_ideal.
// Load balance 1, per step (90 + 90) / (2 · 100), and the 10 ms of each step are in serialization.
TEST(Efficiencies, ShowAWanderingImbalancePerStep) {
  const Line slow = {{kBackward1, 45}, {kUpdate0, 5}};
  const Line fast = {{kBackward1, 35}, {kBucket0, 10}, {kUpdate0, 5}};
  const Efficiencies e = efficiencies(timeline({{slow, fast}, {fast, slow}}));
  EXPECT_NEAR(e.load_balance, 1.0, 1e-12);
  EXPECT_NEAR(e.load_balance_per_step, 0.9, 1e-12);
  EXPECT_NEAR(e.serialization, 0.9, 1e-12);
  EXPECT_NEAR(e.transfer, 1.0, 1e-12);
}

// 40 ms of work and 10 in which no task runs: T_ideal keeps them.
TEST(Efficiencies, PutTimeOfNobodyUnderSerialization) {
  const Line line = {{kBackward1, 30}, {kNobody, 4}, {kUpdate0, 10}, {kNobody, 6}};
  const Efficiencies e = efficiencies(timeline({{line, line}}));
  EXPECT_NEAR(e.serialization, 0.8, 1e-12);
  EXPECT_NEAR(e.transfer, 1.0, 1e-12);
}

// Lanes of a device: the all-reduce of 30 ms overlaps 20 ms of backward, and on a side lane 10 ms of work
// overlap these too: useful 40 + 20 + 5, exposed 10, T = 75.
TEST(Efficiencies, CountAMomentOnceWhereLanesOverlap) {
  RankStep rank;
  rank.end_ns = ns(75);
  rank.slices = {{kBackward1, 0, ns(40)},
                 {kBackward2, ns(40), ns(60)},
                 {kBucket0, ns(40), ns(70)},
                 {kForward, ns(45), ns(55)},
                 {kUpdate0, ns(70), ns(75)}};
  Timeline device = timeline({{Line{}, Line{}}});
  device.steps[0].ranks = {rank, rank};
  const Efficiencies e = efficiencies(device);
  EXPECT_NEAR(e.parallel, 65.0 / 75.0, 1e-12);
  EXPECT_NEAR(e.transfer, 65.0 / 75.0, 1e-12);
  EXPECT_NEAR(e.serialization, 1.0, 1e-12);
}

// A measured transfer begins when the last rank is ready and not when the first is; the replay with the
// unchanged network is the unchanged run.
TEST(Replay, IsTheRunAgainWithTheNetworkAsItWas) {
  const Line early = {{kBackward1, 30}, {kBackward2, 5}, {kBucket0, 21},
                      {kUpdate0, 4},    {kBucket1, 3},   {kUpdate1, 2}};
  const Line late = {{kBackward1, 40}, {kBackward2, 10}, {kBucket0, 6},
                     {kUpdate0, 4},    {kBucket1, 3},    {kUpdate1, 2}};
  const Timeline run = timeline({{early, late}, {late, early}});
  const SampledSteps sampled = sampled_steps(run);
  EXPECT_NEAR(replay_ns(run, sampled, {.transfer = 1.0}), 2 * 65e6, 1.0);
  // Bucket 0 was under way for 16 ms from 40 on, bucket 1, which waits for it, for 7 from 56 on. Halved they end at
  // 48 and at 50 + 3.5: the late rank goes through its 56 ms of work without a wait, the early one waits until 48
  // and until 53.5, and is done at 55.5. It is the late one of the next step, and through its 56 ms at 111.5.
  EXPECT_NEAR(replay_ns(run, sampled, {.transfer = 0.5}), 111.5e6, 1.0);
}

// Bucket 0 takes 20 ms from 30 on; the rank polls it for 2 of them in the middle of backward, which therefore
// ends at 52, when bucket 0 has long ended. Polled for 1 ms only, 51.
TEST(Replay, KeepsWhatRanksDoForACollectiveBesideWork) {
  const Line line = {{kBackward1, 30}, {kBackward2, 10}, {kBucket0, 2}, {kBackward2, 8}, {kUpdate0, 2}};
  const Timeline run = timeline({{line, line}});
  const SampledSteps sampled = sampled_steps(run);
  EXPECT_NEAR(replay_ns(run, sampled, {.transfer = 1.0}), 52e6, 1.0);
  EXPECT_NEAR(replay_ns(run, sampled, {.transfer = 0.5}), 51e6, 1.0);
}

// Bucket 0 was not recorded: it took no time, and bucket 1 still waits for it. It is ready at 40, where
// backward ends.
TEST(Replay, TakesACollectiveThatWasNotSeenForOneThatTookNoTime) {
  const Line line = {{kBackward2, 20}, {kBackward1, 20}, {kBucket1, 16}, {kUpdate0, 2}, {kUpdate1, 2}};
  const Timeline run = timeline({{line, line}});
  EXPECT_NEAR(replay_ns(run, sampled_steps(run), {.transfer = 1.0}), 58e6, 1.0);
  EXPECT_NEAR(replay_ns(run, sampled_steps(run), {.transfer = 0.5}), 50e6, 1.0);
}

// Rank 1 begins 10 ms later and computes for 40 ms, rank 0 for 20: bucket 0 can begin at 50 and takes 1 ms. Rank 0 has
// been in this step for 53 ms then, 52 of them with any network, rank 1 for 43.
TEST(Efficiencies, DoNotBlameTheNetworkForARankThatBeginsLater) {
  const Line early = {{kBackward1, 20}, {kBucket0, 31}, {kUpdate0, 2}};
  const Line late = {{kBackward1, 40}, {kBucket0, 1}, {kUpdate0, 2}};
  Timeline run = timeline({{early, late}});
  run.steps[0].ranks[1] = rank_step(late, 10);
  const Efficiencies e = efficiencies(run);
  EXPECT_NEAR(e.transfer, 52.0 / 53.0, 1e-12);
  EXPECT_NEAR(e.serialization, 42.0 / 52.0, 1e-12);
  EXPECT_NEAR(e.load_balance, 32.0 / 42.0, 1e-12);
}

TEST(Efficiencies, AreSaneOfWhatIsEmpty) {
  for (const Timeline& empty : {Timeline{}, timeline({}), timeline({{Line{}, Line{}}})}) {
    const Efficiencies e = efficiencies(empty);
    EXPECT_EQ(e.steps, 0);
    EXPECT_EQ(e.parallel, 1.0);
    EXPECT_EQ(e.step_ms, 0.0);
    EXPECT_EQ(e.missing_ranks.size(), empty.hosts.size());
    EXPECT_TRUE(step_budget(empty).ranks.empty());
  }
  const Line nothing = {{kBackward1, 0}, {kUpdate0, 0}};
  expect_products(efficiencies(timeline({{nothing, nothing}})));
  EXPECT_EQ(efficiencies(timeline({{nothing, nothing}})).parallel, 1.0);
}

TEST(Efficiencies, OfOneRankLoseNothingButTimeOfNobody) {
  const Efficiencies e = efficiencies(timeline({{{{kBackward1, 45}, {kUpdate0, 3}, {kNobody, 2}}}}));
  EXPECT_EQ(e.ranks, 1);
  EXPECT_NEAR(e.parallel, 0.96, 1e-12);
  EXPECT_EQ(e.load_balance, 1.0);
  EXPECT_EQ(e.transfer, 1.0);
}

TEST(Efficiencies, LeaveOutRanksThatAreMissingAndStepsThatLackOne) {
  const Line line = {{kBackward1, 40}, {kBucket0, 10}};
  const Efficiencies e =
      efficiencies(timeline({{line, Line{}, line}, {line, Line{}, Line{}}, {line, Line{}, line}}));
  EXPECT_EQ(e.ranks, 2);
  EXPECT_EQ(e.missing_ranks, std::vector<int>{1});
  EXPECT_EQ(e.steps, 2);
  EXPECT_EQ(e.left_out_steps, 1);
  EXPECT_NEAR(e.parallel, 0.8, 1e-12);
  Timeline torn = timeline({{line, line}, {line, line}});
  torn.steps[1].ranks[0].dropped = 1;  // the recorder could not hold all of it
  EXPECT_EQ(efficiencies(torn).left_out_steps, 1);
  Timeline fewer = timeline({{line, line}});
  fewer.hosts.emplace_back("node1");  // a step may know of fewer ranks than the world has
  EXPECT_EQ(efficiencies(fewer).missing_ranks, std::vector<int>{2});
}

// With out-of-range indices, slices outside their step or reversed, and tasks that wait for each other in a
// circle.
TEST(Efficiencies, AreSaneOfAForeignFile) {
  const Line line = {{kBackward1, 40}, {kBucket0, 10}, {kUpdate0, 5}, {kBucket1, 5}};
  Timeline foreign = timeline({{line, line}, {line, line}});
  foreign.tasks[kBucket0].after = {kUpdate0, 77, -3};
  foreign.tasks[kUpdate0].after = {kBucket0, kUpdate0, 1000};
  auto& slices = foreign.steps[0].ranks[0].slices;
  slices.push_back({1000, 0, 5});
  slices.push_back({-2, 0, 5});
  slices.push_back({kForward, ns(70), ns(90)});
  slices.push_back({kForward, ns(20), ns(10)});
  foreign.steps[1].ranks[1].end_ns = foreign.steps[1].ranks[1].begin_ns - 1;
  expect_products(efficiencies(foreign));
  EXPECT_LT(efficiencies(foreign).transfer, 1.0);
}

// Twice the ranks with half the batch: an image takes 40/64 instead of 60/128 ms of computing.
TEST(Efficiencies, ComparesComputingPerImageWithABaseline) {
  const Line whole = {{kBackward1, 60}}, half = {{kBackward1, 40}};
  const Timeline baseline = timeline({{whole}, {whole}});
  Timeline run = timeline({{half, half}});
  run.images_per_rank = 64;
  const Efficiencies e = efficiencies(run, baseline);
  ASSERT_TRUE(e.computation_scaling);
  EXPECT_NEAR(*e.computation_scaling, (60.0 / 128) / (40.0 / 64), 1e-12);
  EXPECT_EQ(e.baseline_ranks, 1);
  EXPECT_FALSE(efficiencies(run, Timeline{}).computation_scaling);
  run.images_per_rank = 0;
  EXPECT_FALSE(efficiencies(run, baseline).computation_scaling);
}

/// Steps of 1 to 5 ranks as the runner would record them, on a network that takes `network` of their work.
Timeline random_timeline(std::mt19937& random, double network) {
  const auto ms = [&](double most) { return std::uniform_real_distribution<>(0.0, most)(random); };
  const auto ranks = std::uniform_int_distribution<std::size_t>(1, 5)(random);
  std::vector<std::vector<Line>> steps(std::uniform_int_distribution<std::size_t>(1, 4)(random));
  for (auto& step : steps) {
    std::vector<double> forward, backward, first, second;
    double ready0 = 0.0, ready1 = 0.0;
    for (std::size_t r = 0; r < ranks; ++r) {
      forward.push_back(ms(20));
      backward.push_back(ms(20));
      first.push_back(ms(3));
      second.push_back(ms(3));
      ready0 = std::max(ready0, forward[r]);
      ready1 = std::max(ready1, forward[r] + backward[r]);
    }
    const double done0 = ready0 + network * ms(30), done1 = std::max(done0, ready1) + network * ms(10);
    for (std::size_t r = 0; r < ranks; ++r) {
      const double free0 = forward[r] + backward[r], start0 = std::max(free0, done0);
      const double start1 = std::max(start0 + first[r], done1);
      step.push_back({{kBackward1, forward[r]},
                      {kBackward2, backward[r]},
                      {kBucket0, start0 - free0},
                      {kUpdate0, first[r]},
                      {kBucket1, start1 - start0 - first[r]},
                      {kUpdate1, second[r]},
                      {kNobody, ms(1)}});
    }
  }
  return timeline(steps);
}

void expect_equal(const Efficiencies& a, const Efficiencies& b, double tolerance) {
  EXPECT_NEAR(a.parallel, b.parallel, tolerance);
  EXPECT_NEAR(a.load_balance, b.load_balance, tolerance);
  EXPECT_NEAR(a.serialization, b.serialization, tolerance);
  EXPECT_NEAR(a.transfer, b.transfer, tolerance);
  EXPECT_NEAR(a.load_balance_per_step, b.load_balance_per_step, tolerance);
}

TEST(Efficiencies, KeepTheirIdentitiesOnRandomTimelines) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const Timeline run = random_timeline(random, i % 3 == 0 ? 0.0 : 1.0);
    const Efficiencies e = efficiencies(run);
    expect_products(e);

    Timeline permuted = run;  // the same for all steps
    std::vector<std::size_t> order(run.hosts.size());
    for (std::size_t r = 0; r < order.size(); ++r) order[r] = r;
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t s = 0; s < run.steps.size(); ++s) {
      for (std::size_t r = 0; r < order.size(); ++r)
        permuted.steps[s].ranks[r] = run.steps[s].ranks[order[r]];
    }
    expect_equal(efficiencies(permuted), e, 1e-12);

    Timeline slower = run;
    for (auto& step : slower.steps) {
      for (auto& rank : step.ranks) {
        rank.begin_ns *= 3, rank.end_ns *= 3;
        for (Slice& slice : rank.slices) slice.begin_ns *= 3, slice.end_ns *= 3;
      }
    }
    expect_equal(efficiencies(slower), e, 1e-9);
    EXPECT_NEAR(efficiencies(slower).step_ms, 3 * e.step_ms, 1e-9 * e.step_ms);
  }
}

// Of runs whose network takes no time, recorded as they would be, T_ideal is T.
TEST(Efficiencies, FindNoTransferWhereTheNetworkTakesNoTime) {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    Timeline run = random_timeline(random, 0.0);
    run.steps.resize(1);  // several begin together here, which a run does not
    EXPECT_NEAR(efficiencies(run).transfer, 1.0, 1e-6);
  }
}

TEST(StepBudget, AddsUpToTheStepOfEachRank) {
  const Line one = {{kControl, 1},   {kAugment, 2},   {kForward, 10}, {kLoss, 1},
                    {kBackward1, 8}, {kBackward2, 8}, {kBucket0, 5},  {kUpdate0, 2},
                    {kBucket1, 3},   {kUpdate1, 1},   {kAdvance, 1},  {kNobody, 2}};
  const Line two = {{kForward, 20}, {kBackward1, 5}, {kNobody, 5}};
  const StepBudget budget = step_budget(timeline({{one, Line{}, two}, {one, Line{}, two}}));
  EXPECT_EQ(budget.ranks, (std::vector<int>{0, 2}));
  const std::vector<double> first = {2, 11, 16, 8, 3, 4}, second = {0, 20, 5, 0, 0, 5};
  for (std::size_t s = 0; s < kSections; ++s) {
    EXPECT_NEAR(budget.section_ms[s][0], first[s], 1e-9) << s;
    EXPECT_NEAR(budget.section_ms[s][1], second[s], 1e-9) << s;
  }
  EXPECT_NEAR(budget.step_ms[0], 44, 1e-9);
  EXPECT_NEAR(budget.step_ms[1], 30, 1e-9);
}

TEST(StepBudget, PutsCopiesOfWeightsUnderOtherSumsUnderBackwardAndMuonUnderUpdate) {
  Timeline run = timeline({});
  run.tasks = {};
  for (const char* name : {"control", "conv2 prepare backward, turn", "augment", "conv2 forward", "loss",
                           "conv2 weight gradient", "sum of block1", "compute time", "gradient norm",
                           "muon iteration of conv2/weights", "update 0..7", "running statistics", "advance"})
    run.tasks.push_back({name, engine::kCompute, engine::TaskKind::work, 0, {}});
  using enum Section;
  EXPECT_EQ(sections_of(run), (std::vector<Section>{other, other, input, forward, forward, backward, backward,
                                                    other, update, update, update, update, other}));
}

}  // namespace
}  // namespace cifar_mpi::report
