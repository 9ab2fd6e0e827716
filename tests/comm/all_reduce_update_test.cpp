#include <cstring>
#include <memory>
#include <stdexcept>

#include "cifar_mpi/engine/runner.hpp"
#include "cifar_mpi/engine/verify.hpp"
#include "comm/tiny_step.hpp"

namespace cifar_mpi::comm {
namespace {

using namespace tiny;

class ReducedStep : public testing::TestWithParam<std::string_view> {};

TEST_P(ReducedStep, SumsEveryGradientWhateverTheRunnerAndOverlap) {
  constexpr int kSteps = 4;
  for (const bool overlap : {true, false}) {
    for (const RunnerKind kind : {RunnerKind::lanes, RunnerKind::serial, RunnerKind::audit}) {
      for (const std::size_t bucket_bytes : {1u, 200u, 1u << 20}) {
        TinyStep step(make_collective(GetParam(), test_world()), bucket_bytes, overlap);
        const auto runner = engine::make_host_runner(step.program(step.parts()), kind,
                                                     engine::WhileWaiting::yield, step.regions());
        for (int i = 0; i < kSteps; ++i) runner->replay();
        runner->finish();
        EXPECT_EQ(step.params(), expected_params(step.params().size(), kSteps))
            << "overlap " << overlap << ", runner " << static_cast<int>(kind) << ", bucket " << bucket_bytes;
        const float total = static_cast<float>(test_world().size() * (test_world().size() + 1) / 2);
        EXPECT_EQ(step.totals(), std::vector<float>(kSteps, total));
      }
    }
  }
}

TEST_P(ReducedStep, FollowsABackwardThatFinishesInAnotherOrder) {
  TinyStep step(make_collective(GetParam(), test_world()));
  const auto runner = engine::make_host_runner(step.program(step.parts({4, 2, 0, 1, 3})), RunnerKind::lanes,
                                               engine::WhileWaiting::yield, {});
  for (int i = 0; i < 3; ++i) runner->replay();
  EXPECT_EQ(step.params(), expected_params(step.params().size(), 3));
}

INSTANTIATE_TEST_SUITE_P(Collective, ReducedStep, testing::Values("window", "ring", "doubling", "mpi"),
                         [](const auto& choice) { return std::string(choice.param); });

/// The index of the first `run` of a task of that name.
std::size_t line_of(const StepProgram& program, std::string_view name) {
  const std::vector<Instruction>& lines = program.instructions();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t target = static_cast<std::size_t>(lines[i].target);
    if (lines[i].op == Op::run && program.tasks()[target].name == name) return i;
  }
  return lines.size();
}

std::size_t count_lines(const StepProgram& program, Op op) {
  std::size_t count = 0;
  for (const Instruction& line : program.instructions()) count += line.op == op ? 1 : 0;
  return count;
}

TEST(Overlap, IsWhatWasAskedForAndElseWhatPays) {
  for (const bool device : {false, true}) {
    EXPECT_TRUE(resolve_overlap(Overlap::on, test_world(), device));
    EXPECT_FALSE(resolve_overlap(Overlap::off, test_world(), device));
    const Path path = device ? Path::device : Path::memory;  // all ranks of a test are on one node
    EXPECT_EQ(resolve_overlap(Overlap::automatic, test_world(), device), overlap_pays(path));
  }
}

TEST(Share, IsWhatWasAskedForAndElseWhatPays) {
  for (const bool device : {false, true}) {
    EXPECT_TRUE(resolve_share(Share::on, test_world(), device));
    EXPECT_FALSE(resolve_share(Share::off, test_world(), device));
    EXPECT_EQ(resolve_share(Share::automatic, test_world(), device), !device);
  }
}

TEST(AllReduceUpdate, NeedsEveryWaitItPlaces) {
  for (const bool overlap : {true, false}) {
    TinyStep step(std::make_unique<ThreeRanks>(), 1, overlap);
    const StepProgram program = step.program(step.parts());
    const std::size_t buckets = step.update().spans().size();
    EXPECT_EQ(buckets, 5u);
    EXPECT_EQ(count_lines(program, Op::wait), buckets + (overlap ? buckets : 1));
    for (std::size_t i = 0; i < program.instructions().size(); ++i) {
      if (program.instructions()[i].op != Op::wait) continue;
      EXPECT_FALSE(engine::find_races(without(program, i)).empty())
          << "line " << i << ", overlap " << overlap;
    }
  }
}

/// The task that reads all sums comes after the last of them, so that one wait is enough, and before the
/// first update.
TEST(AllReduceUpdate, LetsAllUpdatesWaitForWhatStandsBeforeThem) {
  for (const bool overlap : {true, false}) {
    TinyStep step(std::make_unique<ThreeRanks>(), 1, overlap);
    StepParts parts = step.parts();
    parts.before_updates =
        Task{"norm", {bytes_of(step.grads().data(), step.grads().size())}, {}, [](Lane&) {}, {}};
    const std::size_t waits = count_lines(step.program(step.parts()), Op::wait);
    const StepProgram program = step.program(std::move(parts));
    EXPECT_EQ(count_lines(program, Op::wait), waits - step.update().spans().size() + 1);
    EXPECT_LT(line_of(program, "all-reduce of bucket 4"), line_of(program, "norm"));
    EXPECT_LT(line_of(program, "norm"), line_of(program, "update"));
    for (std::size_t i = 0; i < program.instructions().size(); ++i) {
      if (program.instructions()[i].op != Op::wait) continue;
      EXPECT_FALSE(engine::find_races(without(program, i)).empty()) << "line " << i;
    }
  }
}

TEST(AllReduceUpdate, StandsBeforeTheUpdatesOfOneRankToo) {
  TinyStep step(std::make_unique<OneRank>());
  StepParts parts = step.parts();
  parts.before_updates =
      Task{"norm", {bytes_of(step.grads().data(), step.grads().size())}, {}, [](Lane&) {}, {}};
  const StepProgram program = step.program(std::move(parts));
  EXPECT_LT(line_of(program, "norm"), line_of(program, "update"));
  EXPECT_LT(line_of(program, "norm"), program.instructions().size());
}

TEST(AllReduceUpdate, SendsTheFirstBucketBeforeTheNextIsComputed) {
  TinyStep step(std::make_unique<ThreeRanks>());
  StepParts parts = step.parts();
  parts.compute.back().name = "the last of backward";
  parts.compute[3].name = "the second of backward";
  const StepProgram early = step.program(parts);
  EXPECT_LT(line_of(early, "all-reduce of bucket 0"), line_of(early, "the second of backward"));
  EXPECT_LT(line_of(early, "all-reduce of bucket 3"), line_of(early, "the last of backward"));
  EXPECT_GT(line_of(early, "all-reduce of bucket 4"), line_of(early, "the last of backward"));
  const StepProgram late = step.program(parts, {.exchange = false});
  EXPECT_GT(line_of(late, "all-reduce of bucket 0"), line_of(late, "the last of backward"));
}

TEST(AllReduceUpdate, HoldsABucketBackWhileATaskStillReadsIt) {
  TinyStep step(std::make_unique<ThreeRanks>());
  StepParts parts = step.parts();
  parts.compute.push_back({"norm", {bytes_of(step.grads().data(), 1)}, {}, [](Lane&) {}, {}});
  const StepProgram program = step.program(parts);
  EXPECT_GT(line_of(program, "all-reduce of bucket 0"), line_of(program, "norm"));
  EXPECT_LT(line_of(program, "all-reduce of bucket 1"), line_of(program, "norm"));
}

TEST(AllReduceUpdate, SumsTheControlBlockWithTheFirstBucket) {
  std::vector<std::size_t> exact;
  TinyStep step(std::make_unique<ThreeRanks>(&exact));
  const StepProgram program = step.program(step.parts());
  const Instruction& line = program.instructions()[line_of(program, "all-reduce of bucket 0")];
  const Task& task = program.tasks()[static_cast<std::size_t>(line.target)];
  ASSERT_EQ(task.writes.size(), 1u);
  EXPECT_EQ(task.writes[0].begin, bytes_of(step.control().data(), 1).begin);
  EXPECT_EQ(task.writes[0].size, (kControl + 16) * sizeof(float));
  // The whole control block travels as fp32; no gradient must.
  EXPECT_EQ(exact, (std::vector<std::size_t>{kControl, 0, 0, 0, 0}));
}

/// Local steps also sum the optimizer's state; before they begin, only gradients are summed.
TEST(AllReduceUpdate, SumsSeveralBlocksEachCutAsTheFirstOrTheFirstAlone) {
  engine::ParamLayout layout;
  for (const std::size_t floats : {16u, 48u, 1024u}) engine::append(layout, floats);
  const std::size_t block = layout.trained_floats;
  AllReduceUpdate update(std::make_unique<ThreeRanks>(), layout,
                         {.bucket_mib = 64.0 * 4 / (1 << 20), .blocks = 2});
  update.allocate(kControl);
  const std::span<float> memory = update.block().all();
  EXPECT_EQ(memory.size(), kControl + 2 * block);
  EXPECT_EQ(update.block().grads().data(), memory.data() + kControl);
  const auto spans = update.spans();
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[1].end, block);
  EXPECT_EQ(spans[2].begin, block);
  EXPECT_EQ(spans[2].end, block + spans[0].end);
  EXPECT_EQ(spans[3].end, 2 * block);
  for (const std::size_t blocks : {1u, 2u}) {
    StepParts parts;
    parts.compute.push_back({"backward", {}, {bytes_of(memory.data(), memory.size())}, [](Lane&) {}, {}});
    for (std::size_t i = 0; i < 2 * blocks; ++i)
      parts.update.push_back({Task{"update", {}, {}, [](Lane&) {}, {}}});
    StepProgram program("blocks");
    update.append(program, std::move(parts), {});
    program.finalize();
    EXPECT_EQ(line_of(program, "all-reduce of bucket 3") < program.instructions().size(), blocks == 2);
  }
}

TEST(AllReduceUpdate, PlacesNoCommunicationInAWorldOfOne) {
  if (test_world().size() != 1) GTEST_SKIP() << "needs exactly 1 rank";
  TinyStep step(make_collective("ring", test_world()));
  const StepProgram program = step.program(step.parts());
  EXPECT_EQ(program.lanes(), 1);
  EXPECT_EQ(program.tasks().size(), 7u + 1u + 1u);  // one update of everything
  EXPECT_EQ(count_lines(program, Op::wait), 0u);
}

TEST(AllReduceUpdate, RefusesPartsThatDoNotFit) {
  TinyStep step(std::make_unique<ThreeRanks>());
  const auto refuses = [&](const char* what, auto spoil) {
    StepParts parts = step.parts();
    spoil(parts);
    EXPECT_THROW(step.program(std::move(parts)), std::logic_error) << what;
  };
  EXPECT_NO_THROW(step.program(step.parts()));
  refuses("a bucket that no task writes", [](StepParts& parts) { parts.compute.pop_back(); });
  refuses("nothing computed", [](StepParts& parts) { parts.compute.clear(); });
  refuses("no updates", [](StepParts& parts) { parts.update.clear(); });
  refuses("an update for fewer buckets", [](StepParts& parts) { parts.update.pop_back(); });
  refuses("a second sum of a span", [](StepParts& parts) {
    Task sum{"sum", {}, {}, [](Lane&) {}, {}};
    sum.kind = engine::TaskKind::collective;
    parts.update.back() = {sum, sum};
  });
}

TEST(AllReduceUpdate, MarksTheTasksInWhichARankWaitsForOthers) {
  TinyStep step(std::make_unique<ThreeRanks>());
  const StepProgram program = step.program(step.parts());
  for (const Instruction& line : program.instructions()) {
    if (line.op != Op::run) continue;
    const Task& task = program.tasks()[static_cast<std::size_t>(line.target)];
    EXPECT_EQ(task.kind == engine::TaskKind::collective, line.lane == engine::kComm) << task.name;
  }
}

TEST(AllReduceUpdate, TellsWhatAffectsBits) {
  const AllReduceUpdate update(make_collective("auto", test_world()), {}, {0.3, Wire::fp32, true});
  const std::string chosen = test_world().size() == 1 ? "ring" : "window";
  EXPECT_EQ(update.settings(),
            (RunFingerprint{{"all-reduce", chosen}, {"wire", "fp32"}, {"bucket MiB", "0.3"}}));
  EXPECT_EQ(update.name(), "auto (" + chosen + ")");
}

}  // namespace
}  // namespace cifar_mpi::comm
