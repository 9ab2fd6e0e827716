#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "train/run_fixture.hpp"

/// Whole runs with --lookahead and a tail.
namespace cifar_mpi::train {
namespace {

using optim::StateRole;

class LookaheadRun : public RunTest {
 protected:
  /// The network has running statistics; evaluation's average is that of the last step.
  config::TrainConfig config_with(const std::string& name) const {
    config::TrainConfig c = config();
    c.run_dir = path(name);
    c.model = "resnet20";
    c.augment = data::Augment::crop;
    c.optimizer.kind = optim::OptimizerKind::nesterov;
    c.ema_decay = 0.0;
    c.keep = 100;
    c.checkpoint_every = 1;
    c.summary_every = 0;
    return c;
  }
};

/// `found` is share of the way from `slow` to `weights`, in double; the rounding of fp32 is four operations.
void expect_between(const std::vector<run::NamedTensor>& found, const std::vector<run::NamedTensor>& slow,
                    const std::vector<run::NamedTensor>& weights, double share) {
  ASSERT_EQ(found.size(), weights.size());
  for (std::size_t p = 0; p < found.size(); ++p) {
    for (std::size_t i = 0; i < found[p].values.size(); ++i) {
      const double from = slow[p].values[i], to = weights[p].values[i];
      const double bound = 4.0 * 0x1.0p-24 * (std::abs(from) + std::abs(to));
      ASSERT_NEAR(found[p].values[i], from + share * (to - from), bound) << found[p].name << " at " << i;
    }
  }
}

/// Before the first pull the run is the same as one without lookahead, whose weights the pull then takes.
TEST_F(LookaheadRun, PullsWeightsAndRunningStatisticsToSlowOnes) {
  config::TrainConfig plain = config_with("plain"), slow = config_with("slow");
  plain.steps = slow.steps = 4;
  slow.lookahead = 2;
  slow.lookahead_keep = 0.5;
  slow.lookahead_power = 1.0;
  plain.lr = slow.lr = 0.05;
  const std::vector<run::NamedTensor> initial = [&] {
    const auto state = start(slow);
    std::vector<run::NamedTensor> tensors =
        evaluation::export_block(*state->device.backend, *state->device.tower, state->plan.network.params,
                                 state->blocks.state[StateRole::slow]);
    std::ranges::sort(tensors, {}, [](const auto& tensor) { return std::pair(tensor.running, tensor.name); });
    return tensors;  // in the order of a checkpoint
  }();
  run(slow);
  run(plain);
  const run::StateTensors one = saved(slow, 1).state, two = saved(slow, 2).state,
                          two_plain = saved(plain, 2).state;
  expect_same_tensors(one[StateRole::weights], saved(plain, 1).state[StateRole::weights]);
  expect_same_tensors(one[StateRole::slow], initial);
  expect_between(two[StateRole::slow], initial, two_plain[StateRole::weights], 1.0 - 0.5 * 2.0 / 4.0);
  expect_same_tensors(two[StateRole::weights], two[StateRole::slow]);
  expect_same_tensors(two[StateRole::momentum], two_plain[StateRole::momentum]);
  EXPECT_TRUE(std::ranges::any_of(two[StateRole::slow], [](const auto& tensor) { return tensor.running; }));
  const run::StateTensors three = saved(slow, 3).state, four = saved(slow, 4).state;
  expect_same_tensors(three[StateRole::slow], two[StateRole::slow]);
  expect_same_tensors(four[StateRole::slow], four[StateRole::weights]);
}

/// Slow weights that begin late, a return to them before the tail, and the mean over the tail.
TEST_F(LookaheadRun, BeginsLateAndAveragesTheTail) {
  config::TrainConfig c = config_with("tail");
  c.steps = 11;
  c.schedule = optim::ScheduleKind::linear;
  c.final_lr_share = 0.25;
  c.tail_epochs = 3.0 / 8.0;  // 3 of the 8 steps of an epoch
  c.lookahead = 3;
  c.lookahead_steps = 5;  // of the first 8: begins after 3, pulls after 6, returns after 8
  c.lookahead_keep = 0.7;
  c.lookahead_power = 0.0;
  c.ema_decay = 0.5;
  run(c);
  const auto at = [&](std::uint64_t step, StateRole role) { return saved(c, step).state[role]; };
  expect_same_tensors(at(3, StateRole::slow), at(3, StateRole::weights));
  expect_same_tensors(at(5, StateRole::slow), at(3, StateRole::weights));
  expect_same_tensors(at(6, StateRole::slow), at(6, StateRole::weights));
  expect_same_tensors(at(8, StateRole::weights), at(6, StateRole::slow));
  expect_same_tensors(at(11, StateRole::slow), at(6, StateRole::slow));
  const auto average = at(11, StateRole::average), before = at(8, StateRole::average);
  const std::vector<run::NamedTensor> tail[] = {at(9, StateRole::weights), at(10, StateRole::weights),
                                                at(11, StateRole::weights)};
  for (std::size_t p = 0; p < average.size(); ++p) {
    for (std::size_t i = 0; i < average[p].values.size(); ++i) {
      double mean = 0.0, size = std::abs(static_cast<double>(before[p].values[i]));  // its rounding is left
      for (const auto& weights : tail) {
        mean += static_cast<double>(weights[p].values[i]) / 3.0;
        size += std::abs(static_cast<double>(weights[p].values[i]));
      }
      ASSERT_NEAR(average[p].values[i], mean, 6.0 * 0x1.0p-24 * size) << average[p].name << " at " << i;
    }
  }
}

TEST_F(LookaheadRun, ResumesToTheSameBits) {
  config::TrainConfig c = config_with("straight");
  c.steps = 6;
  c.schedule = optim::ScheduleKind::linear;
  c.lookahead = 4;
  run(c);
  config::TrainConfig resumed = c;
  resumed.run_dir = path("resumed");
  resumed.resume = run::checkpoint_path(c.run_dir, 3);
  run(resumed);
  on_rank_zero([&] { EXPECT_EQ(run::content_hash(saved(resumed, 6)), run::content_hash(saved(c, 6))); });
  resumed.run_dir = path("another");
  resumed.lookahead = 3;
  expect_agreed(ErrorKind::checkpoint, "--lookahead is 4, this one's is 3", [&] { start(resumed); });
  resumed.lookahead = 0;
  expect_agreed(ErrorKind::checkpoint, "--lookahead is 4, this one's is 0", [&] { start(resumed); });
}

/// --init-from replaces the initial weights of a run, so the slow weights begin with those, too.
TEST_F(LookaheadRun, BeginsWithTheWeightsOfAnotherRun) {
  config::TrainConfig first = config_with("first");
  first.steps = 2;
  run(first);
  config::TrainConfig c = config_with("second");
  c.init_from = run::checkpoint_path(first.run_dir, 2);
  c.lookahead = 2;
  c.steps = 3;
  run(c);
  expect_same_tensors(saved(c, 1).state[StateRole::slow], saved(first, 2).state[StateRole::average]);
}

}  // namespace
}  // namespace cifar_mpi::train
