#include "cifar_mpi/selfcheck/self_check.hpp"

#include "cifar_mpi/base/text.hpp"
#include "run/self_check_record.hpp"
#include "selfcheck/device_checks.hpp"
#include "selfcheck/faulty_device.hpp"
#include "selfcheck/gradient_limits.hpp"
#include "support/contains.hpp"
#include "train/run_fixture.hpp"

/// The results of a self-check and their effects on a run. The device under test is the CPU, with faults.
namespace cifar_mpi::selfcheck {
namespace {

class SelfChecks : public train::RunTest {
 protected:
  static int last() { return world().size() - 1; }
  void break_last_rank(Fault fault) { faults_.fault = world().rank() == last() ? fault : Fault::none; }

  comm::PlatformFactory device() {
    return [this](const engine::BackendOptions& options) {
      ++faults_.made;
      comm::Platform real = comm::on_host(cpu::make_backend(options));
      real.collectives.make = [this, make = real.collectives.make](std::string_view name,
                                                                   const comm::World& all, comm::Wire wire) {
        return std::make_unique<FaultyCollective>(make(name, all, wire), faults_);
      };
      real.backend = std::make_unique<FaultyBackend>(std::move(real.backend), faults_);
      return real;
    };
  }
  SelfCheck check() {
    SelfCheck check;
    check.judge = platform;
    check.identity = [this](const engine::BackendOptions&) { return identity_; };
    return check;
  }
  data::DatasetInfo info() const { return data::DatasetFile(path("data.h5")).info(); }
  SelfCheckReport find(const config::TrainConfig& config) {
    return check_device(config, info(), world(), device(), check());
  }
  std::unique_ptr<train::SessionState> start(const config::TrainConfig& c, const SelfCheck& check) {
    return train::set_up(c, opened(c), world(), Log(world().rank() + 1), device(), stop_, &check);
  }
  std::unique_ptr<train::SessionState> start(const SelfCheck& check) {
    config::TrainConfig c = config();
    c.steps = 1;
    return start(c, check);
  }
  std::optional<run::SelfCheckRecord> record() const {
    return run::read_self_check(Directory(config().run_dir));
  }

  Faults faults_;
  std::string identity_ = "a device; of a test";
};

TEST_F(SelfChecks, PassADeviceThatIsTheCpuInEveryPrecisionAndPart) {
  config::TrainConfig c = config();
  const auto expect_good = [&](const config::TrainConfig& config) {
    const SelfCheckReport report = find(config);
    EXPECT_TRUE(report.good) << (report.faults.empty() ? "" : report.faults.front());
    EXPECT_GE(report.table.size(), 7u);
  };
  expect_good(c);
  c.batch_size = 8, c.accumulate = 2;
  c.optimizer.kind = optim::OptimizerKind::adamw, c.clip_norm = 1.0;
  expect_good(c);
  c = config();
  c.reproducible = true, c.micro_shards = 4, c.global_batch = 16;
  if (world().size() != 3) expect_good(c);
  c = config();
  c.model = "resnet20", c.batch_size = 4;
  c.augment = data::Augment::crop, c.normalize = data::Normalize::dataset;
  expect_good(c);
}

TEST_F(SelfChecks, NameTheRankAndWhatIsWrong) {
  const std::pair<Fault, std::string> cases[] = {
      {Fault::gradient, "gradients, fp32: the gradient of softmax_linear/weights in fp32 is off by "},
      {Fault::image, "distorted images: image 1 is off by "},
      {Fault::hidden_nan, "divergence: NaN in every image gives a cross-entropy of "},
      {Fault::moved_weights, "divergence: NaN in the input is seen, but weights move all the same"},
  };
  for (const auto& [fault, text] : cases) {
    break_last_rank(fault);
    const SelfCheckReport report = find(config());
    EXPECT_FALSE(report.good) << text;
    ASSERT_EQ(report.faults.size(), 1u) << text;
    EXPECT_EQ(
        report.faults[0].find(concat("rank ", last(), " on ", world().hosts()[0], ", a device: ", text)), 0u)
        << report.faults[0];
  }
}

/// With the limits of a device that is a million times slower, only the task that sleeps is slow.
TEST_F(SelfChecks, NameASlowTaskAndPassTheDevice) {
  SelfCheck timed = check();
  timed.measure_limits = [](engine::Precision) { return engine::RooflineLimits{1e6, 1e6}; };
  SelfCheckReport report = check_device(config(), info(), world(), device(), timed);
  EXPECT_TRUE(report.slow.empty()) << report.slow.front();
  EXPECT_TRUE(report.good);
  break_last_rank(Fault::slow);
  report = check_device(config(), info(), world(), device(), timed);
  EXPECT_TRUE(report.good);
  ASSERT_EQ(report.slow.size(), 1u);
  EXPECT_EQ(report.slow[0].find(concat("rank ", last(), " on ", world().hosts()[0], ", a device: speed: ")),
            0u)
      << report.slow[0];
  EXPECT_TRUE(contains(report.slow[0], " takes "));
  EXPECT_EQ(report.slow[0].find(';'), std::string::npos) << report.slow[0];

  timed.measure_limits = [](engine::Precision) -> engine::RooflineLimits {
    throw Error(ErrorKind::device, "no memory is left");
  };
  report = check_device(config(), info(), world(), device(), timed);
  EXPECT_TRUE(report.good);
  const auto speed = std::find_if(report.table.begin(), report.table.end(), [](const std::string& row) {
    return row.find(" speed ") != std::string::npos;
  });
  ASSERT_NE(speed, report.table.end());
  EXPECT_NE(speed->find("left out  no memory is left"), std::string::npos) << *speed;
}

/// Only graphs move these weights wrongly: this start and the next use lanes, unless the run asks for graphs.
TEST_F(SelfChecks, OfADeviceWhoseGraphsAreWrongMakeTheRunTakeLanes) {
  break_last_rank(Fault::graph);
  config::TrainConfig c = config();
  c.steps = 1;
  const SelfCheck all = check();
  for (const bool again : {false, true}) {
    const int before = faults_.made;
    const auto state = start(c, all);
    EXPECT_EQ(faults_.made, before + (again ? 1 : 2));
    EXPECT_TRUE(state->plan.self_check.starts_with("passed ")) << state->plan.self_check;
    EXPECT_EQ(state->plan.config.runner, engine::RunnerKind::lanes);
  }
  world().barrier();
  EXPECT_EQ(record()->result, run::SelfCheckResult::on_lanes);
  c.runner = engine::RunnerKind::graph;
  const SelfCheckReport report = find(c);
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_TRUE(contains(report.faults[0],
                       "runners: in line and as a graph differ: the weights of softmax_linear/weights in "));
}

/// An error is reported as such, and the next start checks again.
TEST_F(SelfChecks, ThatAreStoppedAreNoVerdict) {
  break_last_rank(Fault::lost);
  const SelfCheckReport report = find(config());
  EXPECT_FALSE(report.good);
  EXPECT_TRUE(report.faults.empty());
  ASSERT_EQ(report.stops.size(), 1u);
  EXPECT_TRUE(contains(report.stops[0], "gradients, fp32: the device is gone"));
  expect_agreed(ErrorKind::device, "the GPU is not taken: its self-check was stopped on rank ",
                [&] { start(check()); });
  EXPECT_EQ(record()->result, run::SelfCheckResult::running);
  break_last_rank(Fault::none);
  EXPECT_TRUE(start(check())->plan.self_check.starts_with("passed "));
}

/// A check of fewer tasks says nothing about the others.
TEST_F(SelfChecks, AreMadeAgainForTasksThatWereNotChecked) {
  break_last_rank(Fault::lost);  // the record has the key before the check ends
  config::TrainConfig plain = config();
  plain.model = "resnet20";
  plain.augment = data::Augment::crop;
  config::TrainConfig slow = plain, clipped = plain;
  slow.lookahead = 2;
  clipped.clip_norm = 1.0;
  const SelfCheck all = check();
  std::vector<std::string> keys;
  for (const config::TrainConfig& c : {plain, slow, clipped}) {
    expect_agreed(ErrorKind::device, "its self-check was stopped", [&] { start(c, all); });
    keys.push_back(record()->key);
    EXPECT_EQ(std::ranges::count(keys, keys.back()), 1) << keys.size();
  }
}

/// Only the steps of the run itself are observed.
TEST_F(SelfChecks, FindAStepThatASummaryChanges) {
  break_last_rank(Fault::observed);
  config::TrainConfig c = config();
  c.runner = engine::RunnerKind::graph;  // without which the run would take lanes
  for (const auto update : {comm::UpdateKind::all_reduce, comm::UpdateKind::local}) {
    c.update = update;
    c.local.steps = 2;
    const SelfCheckReport report = find(c);
    ASSERT_FALSE(report.faults.empty()) << to_string(update);
    EXPECT_TRUE(contains(report.faults.back(),
                         "training: steps with summaries, in graphs, traced or resumed differ "));
  }
}

TEST_F(SelfChecks, FindAnAllReduceThatLosesSomething) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has nothing to sum";
  break_last_rank(Fault::sum);
  config::TrainConfig c = config();
  c.all_reduce = "ring";
  const SelfCheckReport report = find(c);
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_TRUE(contains(report.faults[0], "all-reduce: the all-reduce on lanes gives "));
}

/// This is no fault of the device, and has the exit code of the network.
TEST_F(SelfChecks, ThatTheNetworkStopsBlameTheNetwork) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has no network";
  faults_.fault = Fault::network;
  expect_agreed(ErrorKind::comm, "this is the network between the ranks, not the GPU",
                [&] { start(check()); });
  EXPECT_EQ(record()->result, run::SelfCheckResult::running);
}

TEST_F(SelfChecks, AreKeptAndHoldUntilSomethingChanges) {
  std::unique_ptr<train::SessionState> state = start(check());
  EXPECT_TRUE(state->plan.self_check.starts_with("passed ")) << state->plan.self_check;
  EXPECT_EQ(faults_.made, 2);  // one to check, one to train
  state.reset();
  world().barrier();
  EXPECT_EQ(record()->result, run::SelfCheckResult::passed);
  EXPECT_TRUE(contains(record()->text, "a device; of a test\n"));

  break_last_rank(Fault::gradient);
  state = start(check());
  EXPECT_EQ(faults_.made, 3);
  state.reset();
  identity_ = "a device; with another driver";
  expect_agreed(ErrorKind::device, concat("rank ", last(), " on "), [&] { start(check()); });
  EXPECT_EQ(record()->result, run::SelfCheckResult::failed);
}

TEST_F(SelfChecks, OfAFaultyDeviceMakeTheRunTakeTheOther) {
  SelfCheck both = check();
  both.instead = platform;
  break_last_rank(Fault::gradient);
  std::unique_ptr<train::SessionState> state = start(both);
  EXPECT_TRUE(state->plan.self_check.starts_with("on the CPU, because its self-check failed on rank "))
      << state->plan.self_check;
  state.reset();
  // It is not tried again, unless the user asks for it.
  break_last_rank(Fault::none);
  const int before = faults_.made;
  state = start(both);
  EXPECT_EQ(faults_.made, before);
  EXPECT_TRUE(state->plan.self_check.starts_with("on the CPU, because its self-check failed at "))
      << state->plan.self_check;
  state.reset();
  both.instead = nullptr;
  expect_agreed(ErrorKind::device, "the GPU is not taken: its self-check failed at ", [&] { start(both); });
  both.asked_for = true;
  state = start(both);
  EXPECT_TRUE(state->plan.self_check.starts_with("passed ")) << state->plan.self_check;
}

TEST_F(SelfChecks, ThatHungAreBegunOnceMore) {
  start(check()).reset();
  const auto hang = [&](run::SelfCheckResult before) {  // as the watchdog leaves it
    world().barrier();
    on_rank_zero([&] {
      run::SelfCheckRecord hung = *record();
      hung.result = before;
      run::write_self_check(Directory(config().run_dir), hung);
      run::note_hung_self_check(Directory(config().run_dir));
    });
    world().barrier();
  };
  SelfCheck both = check();
  both.instead = platform;
  hang(run::SelfCheckResult::running);
  break_last_rank(Fault::lost);  // stops the second one; the count of hangs is kept
  start(both).reset();
  world().barrier();
  EXPECT_EQ(record()->result, run::SelfCheckResult::running_again);
  break_last_rank(Fault::none);
  EXPECT_TRUE(start(both)->plan.self_check.starts_with("passed "));
  hang(run::SelfCheckResult::running_again);
  const int before = faults_.made;
  const auto state = start(both);
  EXPECT_EQ(faults_.made, before);
  EXPECT_TRUE(
      state->plan.self_check.starts_with("on the CPU, because its self-check hung twice, the last time at "))
      << state->plan.self_check;
}

TEST_F(SelfChecks, AreLeftOutWhenAskedAndSayWhatTheyCannotDo) {
  config::TrainConfig c = config();
  c.steps = 1;
  c.self_check = config::SelfCheckMode::off;
  break_last_rank(Fault::gradient);
  const SelfCheck all = check();
  const auto state = start(c, all);
  EXPECT_EQ(state->plan.self_check, "left out");
  EXPECT_FALSE(record());

  break_last_rank(Fault::none);
  SelfCheck without = check();
  without.judge = nullptr;
  const SelfCheckReport report = check_device(config(), info(), world(), device(), without);
  EXPECT_TRUE(report.good);
  EXPECT_TRUE(contains(report.table[1], "left out  there is no CPU backend"));
  break_last_rank(Fault::moved_weights);
  EXPECT_FALSE(check_device(config(), info(), world(), device(), without).good);
}

/// The bits of the run are the same with and without a check.
TEST_F(SelfChecks, ChangeNoBitOfTheRun) {
  std::vector<std::uint64_t> hashes;
  for (const config::SelfCheckMode mode : {config::SelfCheckMode::on, config::SelfCheckMode::off}) {
    config::TrainConfig c = config();
    c.self_check = mode;
    c.run_dir = path(concat("run_", to_string(mode)));
    const SelfCheck all = check();
    run(*start(c, all));
    hashes.push_back(run::content_hash(run::read_checkpoint(run::checkpoint_path(c.run_dir, 4))));
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace cifar_mpi::selfcheck
