#include "cifar_mpi/engine/branches.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "fake_tasks.hpp"

namespace cifar_mpi::engine {
namespace {

/// Cells of memory that tasks declare.
class BranchesOf : public testing::Test {
 protected:
  Bytes cell(std::size_t i) const { return bytes_of(&cells_[i], 1); }
  Task task(const char* name, std::vector<std::size_t> reads, std::vector<std::size_t> writes,
            bool concurrent) {
    Task made = inline_task(name, {}, {});
    for (const std::size_t i : reads) made.reads.push_back(cell(i));
    for (const std::size_t i : writes) made.writes.push_back(cell(i));
    made.concurrent = concurrent;
    return made;
  }

  /// "a | b' w d": tasks concurrent have a prime, a wait of the compute lane is "w", of the side lane "w'".
  static std::string text(const StepProgram& program) {
    std::string line;
    for (const Instruction& i : program.instructions()) {
      if (i.op == Op::set) continue;
      line += i.op == Op::wait ? "w" : program.tasks()[static_cast<std::size_t>(i.target)].name;
      line += i.lane == kFirstSide ? "' " : i.lane == kComm ? "\" " : " ";
    }
    return line;
  }

 private:
  std::array<double, 16> cells_{};
};

TEST_F(BranchesOf, TheSideLaneJoinWhereALaterTaskTouchesWhatTheyDo) {
  StepProgram program("p");
  Branches branches(program, true);
  branches.run(task("a", {}, {0, 1}, false));
  branches.run(task("b", {0}, {2}, true));
  branches.run(task("c", {1}, {3}, true));      // already after b
  branches.run(task("d", {0, 1}, {4}, false));  // reads what they read
  branches.run(task("e", {4}, {5}, true));
  branches.run(task("f", {2}, {6}, false));  // reads what b wrote
  branches.run(task("g", {6}, {7}, true));
  branches.run(task("h", {}, {6}, false));  // writes what g reads
  branches.run(task("i", {}, {8}, true));
  branches.join();
  branches.join();
  program.finalize();
  EXPECT_EQ(text(program), "a w' b' c' d w' e' w f w' g' w h w' i' w ");
}

TEST_F(BranchesOf, AnotherLaneWaitForBothLanes) {
  StepProgram program("p");
  Branches branches(program, true);
  branches.run(task("a", {}, {0}, false));
  branches.wait(kComm);
  branches.run(task("b", {0}, {1}, true));
  branches.wait(kComm);
  program.run(kComm, task("sum", {0, 1}, {0, 1}, false));
  program.wait(kCompute, program.set(kComm));
  branches.run(task("u", {0, 1}, {2}, false));
  branches.join();
  program.finalize();
  EXPECT_EQ(text(program), "a w\" w' b' w\" w\" sum\" w w u ");
}

TEST_F(BranchesOf, TheSideLaneContinueBesideATaskOfAnotherLane) {
  StepProgram program("p");
  Branches branches(program, true);
  branches.run(task("a", {}, {0, 1}, false));
  branches.run(task("b", {0}, {2}, true));
  branches.run_on(kComm, task("sum", {1}, {1}, false));  // after a alone
  branches.run(task("c", {1}, {3}, true));               // reads the sum
  branches.run_on(kComm, task("sum", {3}, {3}, false));  // after c
  branches.run(task("d", {3}, {4}, false));
  branches.join();
  program.finalize();
  EXPECT_EQ(text(program), "a w' b' w\" sum\" w w' c' w w\" sum\" w d ");
}

TEST_F(BranchesOf, NobodyStandInTheirPlace) {
  StepProgram program("p");
  Branches branches(program, false);
  branches.run(task("a", {}, {0}, false));
  branches.run(task("b", {0}, {1}, true));
  branches.run(task("c", {}, {2}, false));
  branches.join();
  program.finalize();
  EXPECT_EQ(text(program), "a b c ");
}

TEST_F(BranchesOf, AnyTasksAreFreeOfRaces) {
  std::mt19937 chance(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(chance() % n); };
  int beside = 0;
  for (int round = 0; round < 300; ++round) {
    StepProgram program("p");
    Branches branches(program, true);
    for (int i = 0; i < 12; ++i) {
      std::vector<std::size_t> reads, writes;
      for (std::size_t n = below(3); n > 0; --n) reads.push_back(below(10));
      for (std::size_t n = below(3); n > 0; --n) writes.push_back(below(10));
      branches.run(task("t", reads, writes, below(2) == 0));
    }
    branches.join();
    ASSERT_NO_THROW(program.finalize()) << text(program);
    beside += program.lanes() > kFirstSide ? 1 : 0;
  }
  EXPECT_GT(beside, 200);
}

}  // namespace
}  // namespace cifar_mpi::engine
