#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "cifar_mpi/engine/runner.hpp"
#include "cifar_mpi/engine/verify.hpp"
#include "comm/tiny_step.hpp"

/// Sums over the ranks between compute tasks.
namespace cifar_mpi::comm {
namespace {

using namespace tiny;

class StepWithRankSums : public testing::TestWithParam<std::string_view> {};

TEST_P(StepWithRankSums, SumsBetweenComputeTasksWhateverTheRunnerAndOverlap) {
  const int ranks = test_world().size();
  if (ranks == 1) return;
  std::vector<float> wanted;
  for (int i = 0; i < 2 * static_cast<int>(TinyStep::kSummed); ++i)
    wanted.push_back(static_cast<float>(ranks * (ranks - 1) / 2 + ranks * i));
  for (const bool overlap : {true, false}) {
    for (const RunnerKind kind : {RunnerKind::lanes, RunnerKind::serial, RunnerKind::audit}) {
      TinyStep step(make_collective(GetParam(), test_world()), 1, overlap);
      const auto runner = engine::make_host_runner(step.program(step.parts_with_sums()), kind,
                                                   engine::WhileWaiting::yield, step.regions());
      for (int i = 0; i < 3; ++i) runner->replay();
      runner->finish();
      EXPECT_EQ(step.taken(), wanted) << "overlap " << overlap << ", runner " << static_cast<int>(kind);
      EXPECT_EQ(step.params(), expected_params(step.params().size(), 3));
    }
  }
}

TEST_P(StepWithRankSums, SumsBetweenUpdateTasksWhateverTheRunnerAndOverlap) {
  const int ranks = test_world().size();
  if (ranks == 1) return;
  for (const bool overlap : {true, false}) {
    for (const RunnerKind kind : {RunnerKind::lanes, RunnerKind::serial, RunnerKind::audit}) {
      TinyStep step(make_collective(GetParam(), test_world()), 1, overlap);
      const auto runner = engine::make_host_runner(step.program(step.parts_with_sums_of_updates()), kind,
                                                   engine::WhileWaiting::yield, step.regions());
      for (int i = 0; i < 3; ++i) runner->replay();
      runner->finish();
      for (std::size_t i = 0; i < step.update().spans().size(); ++i)
        EXPECT_EQ(step.taken()[i], static_cast<float>(ranks * (ranks - 1) / 2 + ranks * static_cast<int>(i)));
      EXPECT_EQ(step.params(), expected_params(step.params().size(), 3));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collective, StepWithRankSums, testing::Values("window", "ring", "doubling", "mpi"),
                         [](const auto& choice) { return std::string(choice.param); });

TEST(AllReduceUpdate, OrdersSumsBetweenComputeTasks) {
  TinyStep step(std::make_unique<ThreeRanks>(), 1 << 20);
  const StepProgram program = step.program(step.parts_with_sums());
  for (std::size_t i = 0; i < program.instructions().size(); ++i) {
    if (program.instructions()[i].op != Op::wait) continue;
    EXPECT_FALSE(engine::find_races(without(program, i)).empty()) << "line " << i;
  }
}

/// The ranks share the work of all spans only if none of them waits for another before its own part is done.
TEST(AllReduceUpdate, StartsTheSumsBetweenUpdateTasksBeforeAnyUpdateWaits) {
  TinyStep step(std::make_unique<ThreeRanks>());
  for (const bool all_first : {false, true}) {
    StepParts parts = step.parts_with_sums_of_updates();
    if (all_first) {
      parts.before_updates =
          Task{"norm", {bytes_of(step.grads().data(), step.grads().size())}, {}, [](Lane&) {}, {}};
    }
    const StepProgram program = step.program(std::move(parts));
    std::vector<std::string> names;
    for (std::size_t i = 0; i < program.instructions().size(); ++i) {
      const Instruction& line = program.instructions()[i];
      if (line.op == Op::wait) {
        EXPECT_FALSE(engine::find_races(without(program, i)).empty()) << "line " << i;
      }
      if (line.op == Op::run) names.push_back(program.tasks()[static_cast<std::size_t>(line.target)].name);
    }
    EXPECT_EQ(std::ranges::count(names, "sum"), 5);
    EXPECT_LT(std::ranges::find(names.rbegin(), names.rend(), "sum").base(),
              std::ranges::find(names, "take") + 1);
  }
}

TEST(AllReduceUpdate, SendsSumsBetweenComputeTasksAsFp32) {
  std::vector<std::size_t> exact;
  TinyStep step(std::make_unique<ThreeRanks>(&exact), 1 << 20);
  step.program(step.parts_with_sums());
  EXPECT_EQ(exact, (std::vector<std::size_t>{step.control().size(), TinyStep::kSummed, TinyStep::kSummed}));
}

TEST(AllReduceUpdate, RefusesSumsThatItHasNoMemoryFor) {
  TinyStep alone(std::make_unique<OneRank>());
  EXPECT_TRUE(alone.update().rank_sums().empty());
  EXPECT_THROW(alone.program(alone.parts_with_sums()), std::logic_error);
  EXPECT_THROW(alone.program(alone.parts_with_sums_of_updates()), std::logic_error);
  TinyStep step(std::make_unique<ThreeRanks>());
  std::vector<float> other(2);
  for (const auto& [memory, floats] :
       {std::pair{other.data(), std::size_t{2}}, {step.update().rank_sums().data(), 1 << 10}}) {
    StepParts parts = step.parts();
    parts.compute.push_back(engine::sum_over_ranks("foreign", {memory, 3}, floats));
    EXPECT_THROW(step.program(std::move(parts)), std::logic_error);
  }
}

}  // namespace
}  // namespace cifar_mpi::comm
