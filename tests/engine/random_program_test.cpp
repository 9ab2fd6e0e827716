#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/engine/runner.hpp"
#include "cifar_mpi/engine/verify.hpp"
#include "fake_tasks.hpp"

namespace cifar_mpi::engine {
namespace {

constexpr int kCells = 10;
constexpr int kLanes = 4;

/// The results of a program, and when its tasks began and ended.
struct World {
  std::array<std::uint64_t, kCells> cells{};
  std::mt19937_64 chance;  ///< of the completion delays
  std::uint64_t now = 0;
  std::vector<std::uint64_t> began;  ///< by task, of the last replay
  std::vector<std::uint64_t> ended;
};

/// An abstract task; `bind` gives it a world to work on.
struct Sketch {
  LaneId lane = kCompute;
  bool late = false;
  std::vector<int> reads;
  std::vector<int> writes;

  bool touches_what_changes(const Sketch& other) const {
    const auto meet = [](const std::vector<int>& a, const std::vector<int>& b) {
      for (const int x : a) {
        if (std::find(b.begin(), b.end(), x) != b.end()) return true;
      }
      return false;
    };
    return meet(writes, other.writes) || meet(writes, other.reads) || meet(reads, other.writes);
  }
};

/// The new value of every written cell depends on all read cells and on the task. During the task its cells
/// hold garbage, so that premature reads show.
Task bind(const Sketch& sketch, std::size_t id, World& world) {
  Task task;
  task.name = "task " + std::to_string(id);
  for (const int cell : sketch.reads)
    task.reads.push_back(bytes_of(&world.cells[static_cast<std::size_t>(cell)], 1));
  for (const int cell : sketch.writes)
    task.writes.push_back(bytes_of(&world.cells[static_cast<std::size_t>(cell)], 1));
  const auto begin = [&world, sketch, id] {
    world.began[id] = ++world.now;
    for (const int cell : sketch.writes) {
      if (std::find(sketch.reads.begin(), sketch.reads.end(), cell) == sketch.reads.end()) {
        world.cells[static_cast<std::size_t>(cell)] = 0xDEAD;
      }
    }
  };
  const auto end = [&world, sketch, id] {
    std::uint64_t mix = 0x9E3779B97F4A7C15u * (id + 1);
    for (const int cell : sketch.reads)
      mix = (mix ^ world.cells[static_cast<std::size_t>(cell)]) * 0xBF58476D1CE4E5B9u;
    for (const int cell : sketch.writes) world.cells[static_cast<std::size_t>(cell)] = mix ^ (mix >> 31);
    world.ended[id] = ++world.now;
  };
  if (!sketch.late) {
    task.start = [begin, end](Lane&) { begin(), end(); };
    return task;
  }
  auto left = std::make_shared<std::uint64_t>(0);
  task.start = [begin, left, &world](Lane&) {
    begin();
    *left = world.chance() % 3 == 0 ? 0 : world.chance() % 40;
  };
  task.poll = [end, left] {
    if (*left > 0) return --*left, false;
    return end(), true;
  };
  return task;
}

/// A random list of tasks, with a mark and a wait for most of the conflicts between lanes. `plan` is replayed
/// for every world, so that all runners get the same program.
struct Plan {
  std::vector<Sketch> sketches;
  std::vector<Instruction> lines;

  explicit Plan(std::uint64_t seed) {
    std::mt19937_64 chance(seed);
    const auto pick = [&chance](std::uint64_t n) { return static_cast<int>(chance() % n); };
    const int forgotten_in_100 = pick(3) == 0 ? 5 : 0;
    MarkId marks = 0;
    const auto join = [&](LaneId from, LaneId to, MarkId mark) {
      if (from != to && pick(100) >= forgotten_in_100) lines.push_back({Op::wait, to, mark});
    };
    lines.push_back({Op::set, kCompute, marks});
    for (LaneId lane = 1; lane < kLanes; ++lane) join(kCompute, lane, marks);
    ++marks;
    const int count = 2 + pick(14);
    std::vector<MarkId> set_after;  // task → the mark right after it
    for (int i = 0; i < count; ++i) {
      Sketch sketch{static_cast<LaneId>(pick(kLanes)), false, {}, {}};
      sketch.late = sketch.lane == kCompute ? pick(8) == 0 : pick(3) != 0;
      for (int n = pick(3); n > 0; --n) sketch.reads.push_back(pick(kCells));
      for (int n = 1 + pick(2); n > 0; --n) sketch.writes.push_back(pick(kCells));
      for (std::size_t before = 0; before < sketches.size(); ++before) {
        if (sketch.touches_what_changes(sketches[before]))
          join(sketches[before].lane, sketch.lane, set_after[before]);
      }
      lines.push_back({Op::run, sketch.lane, i});
      lines.push_back({Op::set, sketch.lane, marks});
      set_after.push_back(marks++);
      sketches.push_back(std::move(sketch));
    }
    for (LaneId lane = 1; lane < kLanes; ++lane) {
      lines.push_back({Op::set, lane, marks});
      lines.push_back({Op::wait, kCompute, marks++});
    }
  }

  StepProgram build(World& world) const {
    world.began.assign(sketches.size(), 0);
    world.ended.assign(sketches.size(), 0);
    StepProgram program("random");
    for (const Instruction& line : lines) {
      const auto id = static_cast<std::size_t>(line.target);
      if (line.op == Op::run) program.run(line.lane, bind(sketches[id], id, world));
      if (line.op == Op::set) program.set(line.lane);
      if (line.op == Op::wait) program.wait(line.lane, line.target);
    }
    return program;
  }
};

/// Checks the last replay against each rule in StepProgram's header.
void expect_order_kept(const Plan& plan, const World& world) {
  struct LaneSoFar {
    std::uint64_t work_ends = 0;   ///< everything the lane had so far is done
    std::uint64_t not_before = 0;  ///< its waits hold it until then
  };
  std::array<LaneSoFar, kLanes> lanes{};
  std::vector<std::uint64_t> marks;
  for (const Instruction& line : plan.lines) {
    LaneSoFar& lane = lanes[static_cast<std::size_t>(line.lane)];
    const auto target = static_cast<std::size_t>(line.target);
    switch (line.op) {
      case Op::run:
        EXPECT_GT(world.began[target], lane.work_ends) << "task " << target << " overtook its lane";
        EXPECT_GT(world.began[target], lane.not_before) << "task " << target << " did not wait";
        EXPECT_GT(world.ended[target], world.began[target]) << "task " << target << " did not end";
        lane.work_ends = world.ended[target];
        break;
      case Op::set:
        marks.push_back(std::max(lane.work_ends, lane.not_before));
        break;
      case Op::wait:
        lane.not_before = std::max(lane.not_before, marks[target]);
        break;
    }
  }
}

TEST(RandomPrograms, GiveTheSameMemoryInEveryKindWhenTheVerifierAcceptsThem) {
  int accepted = 0;
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const Plan plan(seed);
    World serial;
    StepProgram program = plan.build(serial);
    if (!find_races(program).empty()) {
      ++refused;
      continue;
    }
    ++accepted;
    program.finalize();
    const auto expected = make_host_runner(std::move(program), RunnerKind::serial, WhileWaiting::spin, {});
    for (int replay = 0; replay < 3; ++replay) expected->replay();
    for (const RunnerKind kind : {RunnerKind::lanes, RunnerKind::lanes, RunnerKind::audit}) {
      World world;
      world.chance.seed(seed * 7 + static_cast<std::uint64_t>(accepted));
      StepProgram again = plan.build(world);
      again.finalize();
      const auto runner = make_host_runner(std::move(again), kind, WhileWaiting::spin,
                                           {bytes_of(world.cells.data(), world.cells.size())});
      for (int replay = 0; replay < 3; ++replay) {
        runner->replay();
        expect_order_kept(plan, world);
      }
      ASSERT_EQ(world.cells, serial.cells) << "seed " << seed << ", kind " << static_cast<int>(kind);
    }
  }
  EXPECT_GE(accepted, 300);
  EXPECT_GE(refused, 30) << "the generator must also forget waits";
}

TEST(RandomPrograms, CanComeOutDifferentlyWhenTheVerifierRefusesThem) {
  // The converse: some refused programs do depend on timing, so the worlds above would expose a race that the
  // verifier missed.
  int different = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const Plan plan(seed);
    World serial;
    StepProgram program = plan.build(serial);
    if (find_races(program).empty()) continue;
    Plan forgiven = plan;
    for (Sketch& sketch : forgiven.sketches) sketch.late = sketch.lane != kCompute;
    const auto run = [&](RunnerKind kind) {
      World world;
      StepProgram hidden("declares nothing");
      StepProgram honest = forgiven.build(world);
      for (const Instruction& line : honest.instructions()) {
        if (line.op == Op::set) hidden.set(line.lane);
        if (line.op == Op::wait) hidden.wait(line.lane, line.target);
        if (line.op != Op::run) continue;
        Task task = honest.tasks()[static_cast<std::size_t>(line.target)];
        task.reads.clear();
        task.writes.clear();
        hidden.run(line.lane, std::move(task));
      }
      hidden.finalize();
      make_host_runner(std::move(hidden), kind, WhileWaiting::spin, {})->replay();
      return world.cells;
    };
    if (run(RunnerKind::serial) != run(RunnerKind::lanes)) ++different;
  }
  EXPECT_GE(different, 5);
}

}  // namespace
}  // namespace cifar_mpi::engine
