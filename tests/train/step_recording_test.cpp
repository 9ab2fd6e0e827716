#include "step/step_recording.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>

#include "cifar_mpi/base/text.hpp"
#include "support/trace_reader.hpp"
#include "train/run_fixture.hpp"

/// The choice of sampled steps, and their records in the run directory.
namespace cifar_mpi::train {
namespace {

using Numbers = std::vector<std::uint64_t>;

Numbers all_of(const step::SampleSchedule& schedule, std::uint64_t from = 0) {
  Numbers samples;
  for (auto step = schedule.next(from); step; step = schedule.next(*step + 1)) samples.push_back(*step);
  return samples;
}

TEST(SampleSchedule, HasTenStepsOfAnEpochAtEvenDistances) {
  const Numbers samples = all_of({390.625, 0, 3907, {100'000}});
  EXPECT_EQ(samples.size(), 100u);
  EXPECT_EQ(samples.front(), 19u);
  for (std::size_t i = 1; i < samples.size(); ++i) {
    EXPECT_GE(samples[i] - samples[i - 1], 39u);
    EXPECT_LE(samples[i] - samples[i - 1], 40u);
  }
}

TEST(SampleSchedule, HasNoMoreThanOneInTenSteps) {
  EXPECT_EQ(all_of({3.0, 0, 45, {}}), (Numbers{5, 15, 25, 35}));
}

TEST(SampleSchedule, LeavesOutStepsThatWarmUpOrThatABoundaryFollows) {
  EXPECT_EQ(all_of({100.0, 0, 40, {6, 16}}), (Numbers{6, 16, 25, 36}));
  EXPECT_EQ(all_of({100.0, 0, 37, {26, 27, 36}}), (Numbers{5, 15, 27})) << "also not the last one";
  EXPECT_EQ(all_of({100.0, 14, 40, {100}}, 14), (Numbers{16, 25, 35}));
  EXPECT_EQ(all_of({100.0, 0, 40, {1}}), Numbers{});
  EXPECT_EQ(all_of({100.0, 0, 3, {100}}), Numbers{});
}

TEST(SampleSchedule, DoesNotDependOnWhereItIsAskedFrom) {
  const step::SampleSchedule schedule(390.625, 0, 2000, {50, 93});
  const Numbers samples = all_of(schedule);
  for (std::uint64_t from = 0; from < 2000; ++from) {
    const auto expected = std::lower_bound(samples.begin(), samples.end(), from);
    const auto found = schedule.next(from);
    EXPECT_EQ(found.has_value(), expected != samples.end()) << from;
    if (found) {
      EXPECT_EQ(*found, *expected) << from;
    }
  }
}

class Recording : public RunTest {
 protected:
  config::TrainConfig thirty_steps() const {
    config::TrainConfig c = config();
    c.steps = 30;
    c.check_every = 6;  // after step 5
    c.bucket_mib = 0.1;
    c.summary_every = 0;  // observers run in no sample
    return c;
  }
};

Numbers steps_of(const report::Timeline& timeline) {
  Numbers steps;
  for (const report::Timeline::Step& step : timeline.steps) steps.push_back(step.step);
  return steps;
}

/// Conditions on every rank's part of a step that a host ran, also if clocks differ.
void expect_whole(const report::Timeline& timeline, const report::RankStep& step) {
  std::int64_t last = step.begin_ns;
  std::vector<bool> seen(timeline.tasks.size());
  for (const report::Slice& slice : step.slices) {
    EXPECT_GE(slice.begin_ns, last);
    EXPECT_GE(slice.end_ns, slice.begin_ns);
    last = slice.end_ns;
    seen[static_cast<std::size_t>(slice.task)] = true;
  }
  EXPECT_GE(step.end_ns, last);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), false), 0);
  EXPECT_EQ(step.dropped, 0u);
}

TEST_F(Recording, LeavesTheTasksOfAllRanksInItsSamples) {
  const config::TrainConfig c = thirty_steps();
  run(c);
  const report::Timeline timeline = report::read_timeline(c.run_dir + "/timeline.h5");
  EXPECT_EQ(timeline.program, "train");
  EXPECT_EQ(timeline.wire, "fp32");
  EXPECT_EQ(timeline.images_per_rank, static_cast<std::uint64_t>(c.batch_size));
  EXPECT_EQ(timeline.hosts, world().hosts());
  EXPECT_EQ(timeline.clock_uncertainty_ns, std::vector<std::int64_t>(timeline.hosts.size(), 0));
  EXPECT_EQ(steps_of(timeline), (Numbers{6, 15, 25}));
  for (const report::Timeline::Step& step : timeline.steps) {
    ASSERT_EQ(step.ranks.size(), timeline.hosts.size());
    for (const report::RankStep& rank : step.ranks) expect_whole(timeline, rank);
    // No rank can enter the next step before all are in this one, since all need its sums.
    if (world().size() == 1) continue;
    std::int64_t last_begin = INT64_MIN, first_end = INT64_MAX;
    for (const report::RankStep& rank : step.ranks) {
      last_begin = std::max(last_begin, rank.begin_ns);
      first_end = std::min(first_end, rank.end_ns);
    }
    EXPECT_LT(last_begin, first_end);
  }
}

TEST_F(Recording, KnowsWhichTaskEachCollectiveFollowsAndWhatItSums) {
  const auto state = start(thirty_steps());
  const report::Timeline head =
      step::timeline_head(state->plan, *state->blocks.update, state->programs.step->program());
  EXPECT_FALSE(head.collective.empty());
  std::uint64_t bytes = 0, updates = 0, collectives = 0;
  for (std::size_t i = 0; i < head.tasks.size(); ++i) {
    const report::TimelineTask& task = head.tasks[i];
    const bool collective = task.kind == engine::TaskKind::collective;
    collectives += collective ? 1 : 0;
    bytes += task.bytes;
    if (collective) {
      EXPECT_EQ(task.lane, engine::kComm);
      ASSERT_EQ(task.after.size(), 1u) << task.name;
      EXPECT_EQ(head.tasks[static_cast<std::size_t>(task.after[0])].kind, engine::TaskKind::work);
    } else if (!task.after.empty()) {
      ++updates;
      EXPECT_TRUE(task.name.starts_with("update")) << task.name;
    }
  }
  if (world().size() == 1) {
    EXPECT_EQ(collectives, 0u);
    return;
  }
  EXPECT_GT(collectives, 1u);
  EXPECT_EQ(updates, collectives);
  EXPECT_EQ(bytes, state->blocks.update->block().all().size_bytes())
      << "each byte of the gradient block once";
}

/// Records nothing, whatever the request.
class BlindRunner final : public engine::Runner {
 public:
  explicit BlindRunner(std::unique_ptr<engine::Runner> runner) : runner_(std::move(runner)) {}
  void replay(int times) override { runner_->replay(times); }
  void finish() override { runner_->finish(); }
  void observe(const engine::Observation&) override {}
  std::uint64_t finished() const override { return runner_->finished(); }
  const engine::StepProgram& program() const override { return runner_->program(); }
  std::vector<double> task_seconds() const override { return {}; }

 private:
  std::unique_ptr<engine::Runner> runner_;
};

TEST_F(Recording, ChangesNoBitOfTheRun) {
  const config::TrainConfig c = thirty_steps();
  run(c);
  config::TrainConfig without = c;
  without.run_dir = path("without");
  const auto state = start(without);
  state->programs.step = std::make_unique<BlindRunner>(std::move(state->programs.step));
  run(*state);
  expect_same_state(saved(c, 30), saved(without, 30));
  const report::Timeline nothing = report::read_timeline(without.run_dir + "/timeline.h5");
  EXPECT_EQ(steps_of(nothing), (Numbers{6, 15, 25}));
  for (const report::RankStep& rank : nothing.steps[1].ranks) EXPECT_TRUE(rank.slices.empty());
}

TEST_F(Recording, GoesOnWhenTheRunDoes) {
  config::TrainConfig c = thirty_steps();
  c.steps = 20;
  run(c);
  const report::Timeline before = report::read_timeline(c.run_dir + "/timeline.h5");
  EXPECT_EQ(steps_of(before), (Numbers{6, 15}));
  c.steps = 40;
  run(c);
  const report::Timeline after = report::read_timeline(c.run_dir + "/timeline.h5");
  EXPECT_EQ(steps_of(after), (Numbers{6, 15, 22, 25, 36}))
      << "the stretch of step 15 goes on after the start";
  EXPECT_EQ(after.steps[1], before.steps[1]);
}

/// Their tasks have the same names, but take other times.
TEST_F(Recording, HasOnlyStepsOfTheLastImageSize) {
  config::TrainConfig c = thirty_steps();
  c.model = "resnet20";
  c.augment = data::Augment::crop;
  c.lr = 0.01;
  c.image_sizes = {{8, 1.0}, {10, 1.0}, {8}};  // steps 1 to 8, 9 to 16, 17 to 30
  run(c);
  const report::Timeline timeline = report::read_timeline(c.run_dir + "/timeline.h5");
  EXPECT_EQ(timeline.image_size, 8u);
  ASSERT_FALSE(timeline.steps.empty());
  EXPECT_GE(timeline.steps.front().step, 16u);
}

TEST_F(Recording, HoldsUpNoRunWhereItCannotBeWritten) {
  const config::TrainConfig c = thirty_steps();
  on_rank_zero([&] { std::filesystem::create_directories(c.run_dir + "/timeline.h5/mine"); });
  run(c);
  EXPECT_TRUE(std::filesystem::exists(run::checkpoint_path(c.run_dir, 30)));
  EXPECT_TRUE(std::filesystem::exists(c.run_dir + "/timeline.h5/mine"));
}

/// RUN_DIR/trace/step_N.perfetto-trace.
class Trace : public Recording {
 protected:
  static test::TraceRead read(const config::TrainConfig& config, int first) {
    return test::read_trace(read_file(concat(config.run_dir, "/trace/step_", first, ".perfetto-trace")));
  }
  /// The steps shown for rank r.
  static Numbers steps(const test::TraceRead& trace, int rank) {
    Numbers numbers;
    const std::string host = world().hosts()[static_cast<std::size_t>(rank)];
    for (const test::TraceSlice& slice : trace.on(concat("rank ", rank, " on ", host, "/steps")))
      numbers.push_back(std::stoull(slice.name.substr(5)));
    return numbers;
  }
  static Numbers from_to(std::uint64_t first, std::uint64_t last) {
    Numbers numbers(last - first + 1);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }
};

TEST_F(Trace, HasTheStepsThatItWasAskedForOfAllRanksAndChangesNoBit) {
  config::TrainConfig c = thirty_steps();
  c.trace = {11, 24};  // with a comparison in between, and more steps than one gathering takes
  run(c);
  config::TrainConfig without = thirty_steps();
  without.run_dir = path("without");
  run(without);
  expect_same_state(saved(c, 30), saved(without, 30));
  EXPECT_FALSE(std::filesystem::exists(without.run_dir + "/trace"));
  EXPECT_EQ(steps_of(report::read_timeline(c.run_dir + "/timeline.h5")), (Numbers{6, 15, 25}))
      << "samples are what they were";
  const test::TraceRead trace = read(c, 11);
  for (int rank = 0; rank < world().size(); ++rank) EXPECT_EQ(steps(trace, rank), from_to(11, 24));
  EXPECT_EQ(trace.values("loss").size(), 14u);
  EXPECT_EQ(trace.values("images per second").size(), 14u);
  // On every rank each collective of each step depends on the task before it and on the other ranks.
  std::map<std::uint64_t, std::vector<test::TraceSlice>> arrows;
  std::size_t collectives = 0;
  for (const test::TraceSlice& slice : trace.slices) {
    collectives += slice.category == "collective" && slice.depth == 0 ? 1 : 0;
    for (const std::uint64_t id : slice.flows) arrows[id].push_back(slice);
  }
  const auto ranks = static_cast<std::size_t>(world().size());
  EXPECT_EQ(arrows.size(), collectives + (ranks > 1 ? collectives / ranks : 0));
  EXPECT_EQ(collectives > 0, ranks > 1);
  for (const auto& [id, stations] : arrows) {
    if (stations[0].category == "work") {
      ASSERT_EQ(stations.size(), 2u);
      EXPECT_LE(stations[0].end, stations[1].begin) << "a sum begins after the last writer of its bucket";
    } else {
      ASSERT_EQ(stations.size(), ranks);
      std::uint64_t first_end = UINT64_MAX, last_begin = 0;
      for (const test::TraceSlice& slice : stations) {
        first_end = std::min(first_end, slice.end);
        last_begin = std::max(last_begin, slice.begin);
      }
      EXPECT_LE(last_begin, first_end) << "no sum ends before all ranks are in it";
    }
  }
}

TEST_F(Trace, IsMadeOfTheNextTenStepsWhenAnyRankIsAskedAndOnce) {
  config::TrainConfig c = thirty_steps();
  if (world().rank() == world().size() - 1) stop_ = engine::kTraceRequest;
  run(c);
  EXPECT_EQ(stop_, 0) << "the request was granted";
  const auto files = std::distance(std::filesystem::directory_iterator(c.run_dir + "/trace"), {});
  EXPECT_EQ(files, 1);
  for (int rank = 0; rank < world().size(); ++rank)
    EXPECT_EQ(steps(read(c, 3), rank), from_to(3, 12)) << "step 1 asks, and all ranks know after step 2";
}

TEST_F(Trace, OfARequestGoesOnWithImagesOfAnotherSize) {
  config::TrainConfig c = thirty_steps();
  c.model = "resnet20";
  c.augment = data::Augment::crop;
  c.lr = 0.01;
  c.image_sizes = {{8, 0.875}, {10, 0.25}, {8}};  // steps 1 to 7, 8 and 9, 10 to 30
  c.trace = {20, 21};
  stop_ = engine::kTraceRequest;
  run(c);
  for (const auto& [first, last] : {std::pair{3, 7}, {8, 9}, {10, 12}, {20, 21}}) {
    EXPECT_EQ(steps(read(c, first), 0),
              from_to(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(last)));
  }
}

TEST_F(Trace, IsOneOfTheStepsOfARequestAndOfTheOption) {
  config::TrainConfig c = thirty_steps();
  c.trace = {13, 20};  // the request is for 3 to 12
  stop_ = engine::kTraceRequest;
  run(c);
  const auto files = std::distance(std::filesystem::directory_iterator(c.run_dir + "/trace"), {});
  EXPECT_EQ(files, 1);
  EXPECT_EQ(steps(read(c, 3), 0), from_to(3, 20));
}

TEST_F(Trace, EndsWithTheRun) {
  config::TrainConfig c = config();
  c.steps = 6;
  stop_ = engine::kTraceRequest;
  run(c);
  EXPECT_EQ(steps(read(c, 3), 0), from_to(3, 6));
}

TEST_F(Trace, IsRefusedBeyondTheEndOfTheRunAndLeftOutBeforeItsStart) {
  config::TrainConfig c = config();
  c.steps = 6;
  c.trace = {4, 7};
  expect_agreed(ErrorKind::usage, "--trace 4-7 ends after the last step of the run, 6", [&] { start(c); });
  c.trace = {};
  run(c);
  c.steps = 8;
  c.trace = {2, 3};
  run(c);
  EXPECT_FALSE(std::filesystem::exists(c.run_dir + "/trace"));
}

TEST_F(Trace, HoldsUpNoRunWhereItCannotBeWritten) {
  config::TrainConfig c = config();
  c.trace = {2, 3};
  on_rank_zero([&] {
    std::filesystem::create_directories(c.run_dir);
    write_file(c.run_dir + "/trace", "mine");
  });
  run(c);
  EXPECT_TRUE(std::filesystem::exists(run::checkpoint_path(c.run_dir, 4)));
  EXPECT_EQ(read_file(c.run_dir + "/trace"), "mine");
}

}  // namespace
}  // namespace cifar_mpi::train
