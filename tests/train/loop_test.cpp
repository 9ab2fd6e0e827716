#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>

#include "support/launch_counter.hpp"
#include "train/run_fixture.hpp"

namespace cifar_mpi::train {
namespace {

using Loop = RunTest;

TEST_F(Loop, LeavesAtAStopWithoutTheEvaluationThatWasDue) {
  config::TrainConfig c = config();
  c.eval_every = 1.0 / 8.0;  // every step
  stop_ = 1;
  expect_agreed(ErrorKind::stopped, "stopped on request at step 1", [&] { run(c); });
  EXPECT_FALSE(saved(c, 1).provenance.test_accuracy);
  EXPECT_EQ(read_file(c.run_dir + "/metrics.jsonl").find("test_accuracy"), std::string::npos);
}

TEST_F(Loop, LaunchesSeveralStepsWhereNothingIsDueBeforeTheirEnd) {
  config::TrainConfig c = config();
  c.steps = 30;
  const auto launches_of = [&](const char* name, bool graphs = false) {
    c.run_dir = path(name);
    const auto state = start(c);
    std::vector<int> launches;
    state->programs.step = std::make_unique<test::LaunchCounter>(
        std::move(state->programs.step), [&](int times) { launches.push_back(times); }, graphs);
    run(*state);
    return launches;
  };
  EXPECT_EQ(launches_of("single"), std::vector<int>(30, 1));
  // log 10, 20, 30; recorded are 5, 15 and 25, counted from 0
  EXPECT_EQ(launches_of("graphs", true),
            (std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5, 1, 1, 1, 1, 1, 5, 1, 1, 1, 1, 1}));
  c.graph_steps = 3;
  c.log_every = 9;
  c.checkpoint_every = 14;
  c.check_every = 20;
  c.eval_every = 23.0 / 8.0;
  // log 9, 18, 27; checkpoint 14, 28; comparison 20; evaluation 23; recorded are 5, 15 and 25; looked at is 1
  EXPECT_EQ(launches_of("several"),
            (std::vector<int>{1, 3, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1}));
  expect_same_tensors(
      run::read_checkpoint(run::checkpoint_path(path("single"), 30)).state[optim::StateRole::weights],
      run::read_checkpoint(run::checkpoint_path(path("several"), 30)).state[optim::StateRole::weights]);
}

/// Behaves like a device: enqueued work runs when more is enqueued. A replay takes at least 20 ms.
class LaggingRunner final : public engine::Runner {
 public:
  explicit LaggingRunner(std::unique_ptr<engine::Runner> runner) : runner_(std::move(runner)) {}
  void replay(int times) override { enqueued_ += (finish(), times); }
  void finish() override {
    for (; enqueued_ > 0; --enqueued_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      runner_->replay();
    }
  }
  void observe(const engine::Observation& observation) override {
    finish();
    runner_->observe(observation);
  }
  std::uint64_t finished() const override { return runner_->finished(); }
  const engine::StepProgram& program() const override { return runner_->program(); }
  std::vector<double> task_seconds() const override { return {}; }

 private:
  std::unique_ptr<engine::Runner> runner_;
  int enqueued_ = 0;
};

TEST_F(Loop, TimesStepsThatAreDoneAfterTheirLaunch) {
  config::TrainConfig c = config();
  c.steps = 7;
  c.log_every = 1;
  c.checkpoint_every = 3;
  const auto state = start(c);
  state->programs.step = std::make_unique<LaggingRunner>(std::move(state->programs.step));
  run(*state);
  std::istringstream lines(read_file(c.run_dir + "/metrics.jsonl"));
  int steps = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string key = "\"images_per_second\":";
    const std::size_t at = line.find(key);
    if (at == std::string::npos) continue;
    ++steps;
    EXPECT_LE(std::stod(line.substr(at + key.size())), 12.0 / 0.020) << line;
  }
  EXPECT_EQ(steps, 7);
}

TEST_F(Loop, DoesNotTakeSettingUpForAPauseOfTraining) {
  const auto state = start(config());
  std::this_thread::sleep_for(std::chrono::seconds(4));  // as if that took so long
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  // Four seconds of training, and the margin; counted from the start of set-up they would be over.
  setenv("SLURM_JOB_END_TIME", fmt::format("{:.3f}", now + 14.0).c_str(), 1);
  EXPECT_NO_THROW(run(*state));
  unsetenv("SLURM_JOB_END_TIME");
}

/// Weights and averages that are finite, and give a finite loss, but whose difference overflows in the first
/// step: ReLU hides the negative ones.
class NotFinite : public RunTest {
 protected:
  std::unique_ptr<SessionState> start_with_overflow(const config::TrainConfig& config) {
    auto state = start(config);
    for (const auto& [block, value] : {std::pair{&state->blocks.state[optim::StateRole::weights], -3e38f},
                                       std::pair{&state->blocks.state[optim::StateRole::average], 3e38f}}) {
      std::vector<run::NamedTensor> tensors = evaluation::export_block(
          *state->device.backend, *state->device.tower, state->plan.network.params, *block);
      for (run::NamedTensor& tensor : tensors) {
        if (tensor.name == "conv2/biases") tensor.values.back() = value;
      }
      evaluation::import_block(*state->device.backend, *state->device.tower, tensors, *block);
    }
    return state;
  }
};

/// Biases of the last layer, the first one and the others, on all ranks.
void set_last_biases(SessionState& state, float first, float others) {
  const Buffer& block = state.blocks.state[optim::StateRole::weights];
  std::vector<run::NamedTensor> tensors =
      evaluation::export_block(*state.device.backend, *state.device.tower, state.plan.network.params, block);
  for (run::NamedTensor& tensor : tensors) {
    if (tensor.name != "softmax_linear/biases") continue;
    std::ranges::fill(tensor.values, others);
    tensor.values.front() = first;
  }
  evaluation::import_block(*state.device.backend, *state.device.tower, tensors, block);
}

TEST_F(NotFinite, LossEndsAllRanks) {
  const auto state = start(config());
  set_last_biases(*state, 3e38f, -3e38f);
  expect_agreed(ErrorKind::diverged, "diverged: the loss of step 1 is infinite", [&] { run(*state); });
  EXPECT_FALSE(state->blocks.records[0].applied);
  EXPECT_TRUE(run::list_checkpoints(Directory(config().run_dir)).empty());
}

TEST_F(Loop, EndsWhereAFiniteLossIsAboveAMillion) {
  for (const bool lost : {false, true}) {
    config::TrainConfig c = config();
    c.run_dir = path(lost ? "lost" : "high");
    c.lr = 1e-6;
    const auto state = start(c);
    set_last_biases(*state, lost ? 1e7f : 1e5f, 0.0f);  // the loss of each sample of another class
    if (lost) {
      expect_agreed(ErrorKind::diverged, "diverged: the loss of step 1 is ", [&] { run(*state); });
    } else {
      EXPECT_NO_THROW(run(*state));
    }
    const double loss = state->blocks.records[0].cross_entropy;
    EXPECT_GT(loss, lost ? 1e6 : 1e4);
    EXPECT_LT(loss, lost ? 1e7 : 1e5);
    EXPECT_EQ(run::list_checkpoints(Directory(c.run_dir)).empty(), lost);
  }
}

TEST_F(NotFinite, AveragesAreNotWritten) {
  config::TrainConfig c = config();
  c.checkpoint_every = 2;
  const auto state = start_with_overflow(c);
  expect_agreed(ErrorKind::diverged, "after step 2 the averages of conv2/biases are not finite",
                [&] { run(*state); });
  EXPECT_TRUE(state->blocks.records[1].applied) << "the loss shows it, so this test shows nothing";
  EXPECT_TRUE(run::list_checkpoints(Directory(c.run_dir)).empty());
}

TEST_F(NotFinite, AveragesAreFoundAtTheComparisonOfTheRanks) {
  config::TrainConfig c = config();
  c.check_every = 3;
  const auto state = start_with_overflow(c);
  expect_agreed(ErrorKind::diverged, "after step 3 the averages of conv2/biases are not finite",
                [&] { run(*state); });
  EXPECT_TRUE(run::list_checkpoints(Directory(c.run_dir)).empty());
}

/// Clipping knows the norm of the gradients, so nothing is applied, although the loss is finite.
TEST_F(NotFinite, GradientsOfOneRankEndAllRanksBeforeTheyAreApplied) {
  config::TrainConfig c = config();
  c.clip_norm = 1.0;
  const auto state = start(c);
  const model::ParamTable& params = state->plan.network.params;
  std::size_t p = 0;
  while (params[p].name != "softmax_linear/biases") ++p;
  const auto& entry = state->device.tower->layout().entries[p];
  ASSERT_GT(entry.floats, 10u) << "no padding, which backward leaves as it is";
  if (world().rank() == world().size() - 1) {
    state->blocks.update->block().grads()[entry.offset + entry.floats - 1] =
        std::numeric_limits<float>::infinity();
  }
  const std::vector<run::NamedTensor> before = evaluation::initial_tensors(params, c.seed);
  expect_agreed(ErrorKind::diverged, "the gradient's norm of step 1 is infinite", [&] { run(*state); });
  EXPECT_TRUE(std::isfinite(state->blocks.records[0].cross_entropy));
  EXPECT_FALSE(state->blocks.records[0].applied);
  expect_same_tensors(evaluation::export_block(*state->device.backend, *state->device.tower, params,
                                               state->blocks.state[optim::StateRole::weights]),
                      before);
  EXPECT_TRUE(run::list_checkpoints(Directory(c.run_dir)).empty());
}

TEST_F(NotFinite, WeightsOfOneRankEndAllRanks) {
  const auto state = start(config());
  if (world().rank() == world().size() - 1) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    // The first two layers: the name is that of the first.
    for (const std::size_t p :
         {state->plan.network.params.size() - 3, state->plan.network.params.size() - 1}) {
      float* const weight = state->blocks.state[optim::StateRole::weights].as<float>() +
                            state->device.tower->layout().entries[p].offset;
      state->device.backend->copy(weight, &nan, sizeof nan);
    }
  }
  expect_agreed(ErrorKind::diverged, "after step 0 the weights of conv1/", [&] { run(*state); });
}

}  // namespace
}  // namespace cifar_mpi::train
