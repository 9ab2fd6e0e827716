#include "lower/memory_plan.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace cifar_mpi::lower {
namespace {

using engine::Bytes;
using engine::Task;

/// A program over pieces of an imaginary arena, by their numbers.
class Program {
 public:
  explicit Program(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) pieces_.push_back(imaginary.arena().take(size));
    sizes_ = sizes;
  }

  void run(const std::string& name, const std::vector<std::size_t>& reads,
           const std::vector<std::size_t>& writes, bool concurrent = false) {
    Task task;
    task.name = name;
    for (const std::size_t p : reads) task.reads.push_back(bytes(p));
    for (const std::size_t p : writes) task.writes.push_back(bytes(p));
    task.concurrent = concurrent;
    tasks.push_back(task);
  }
  Bytes bytes(std::size_t piece) const { return {pieces_[piece], sizes_[piece]}; }
  std::byte* at(std::size_t piece) const { return pieces_[piece]; }

  /// The same tasks at the places of the plan, in a block without memory.
  std::vector<Task> placed(const MemoryPlan& plan) const {
    std::byte* const block = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 50);
    std::vector<Task> result = tasks;
    for (Task& task : result) {
      for (auto* ranges : {&task.reads, &task.writes}) {
        for (Bytes& range : *ranges) range.begin = block + plan.offsets[imaginary.piece_of(range)];
      }
    }
    return result;
  }

  ImaginaryArena imaginary;
  std::vector<Task> tasks;

 private:
  std::vector<std::byte*> pieces_;
  std::vector<std::size_t> sizes_;
};

TEST(MemoryPlan, GivesTheBytesOfAPieceToTheNextWhenNobodyReadsItAnyMore) {
  Program program({1000, 1000, 1000});
  program.run("a", {}, {0});
  program.run("b", {0}, {1});
  program.run("c", {1}, {2});
  program.run("d", {2}, {});
  const MemoryPlan plan = plan_memory(program.imaginary, program.tasks, {});
  EXPECT_EQ(plan.offsets[0], plan.offsets[2]);
  EXPECT_NE(plan.offsets[0], plan.offsets[1]);
  EXPECT_EQ(plan.bytes, 1024u + 1024u);
  EXPECT_NO_THROW(require_same_dataflow(program.tasks, program.placed(plan)));
}

TEST(MemoryPlan, KeepsAPieceUntilItsLastReader) {
  Program program({500, 500, 500, 500});
  program.run("a", {}, {0});
  program.run("b", {0}, {1});
  program.run("c", {1}, {2});
  program.run("d", {2, 0}, {3});  // the skip
  const MemoryPlan plan = plan_memory(program.imaginary, program.tasks, {});
  EXPECT_NE(plan.offsets[0], plan.offsets[1]);
  EXPECT_NE(plan.offsets[0], plan.offsets[2]);
  EXPECT_EQ(plan.offsets[1], plan.offsets[3]);
}

TEST(MemoryPlan, PutsAPieceOnAnotherOnlyInTheTaskThatReadsThatLast) {
  for (const bool read_later : {false, true}) {
    Program program({800, 800});
    program.run("a", {}, {0});
    program.run("in place", {0}, {1});
    program.run("c", read_later ? std::vector<std::size_t>{0, 1} : std::vector<std::size_t>{1}, {});
    const MemoryPlan plan = plan_memory(program.imaginary, program.tasks, {{program.at(1), program.at(0)}});
    EXPECT_EQ(plan.offsets[0] == plan.offsets[1], !read_later);
  }
}

TEST(MemoryPlan, KeepsToTheEndWhatAConcurrentTaskTouches) {
  Program program({256, 256, 256, 256});
  program.run("a", {}, {0});
  program.run("beside", {0}, {1}, true);
  program.run("c", {}, {2});
  program.run("beside again", {}, {3}, true);
  const MemoryPlan plan = plan_memory(program.imaginary, program.tasks, {});
  EXPECT_NE(plan.offsets[2], plan.offsets[0]);  // `beside` may still read it
  EXPECT_NE(plan.offsets[2], plan.offsets[1]);
  EXPECT_EQ(plan.offsets[3], plan.offsets[1]);  // these two run one after the other
}

TEST(MemoryPlan, FindsATaskThatWouldReadWhatAnotherWrote) {
  Program program({256, 256});
  program.run("first", {}, {0});
  program.run("second", {}, {1});
  program.run("reader", {0}, {});
  MemoryPlan plan = plan_memory(program.imaginary, program.tasks, {});
  plan.offsets[1] = plan.offsets[0];
  try {
    require_same_dataflow(program.tasks, program.placed(plan));
    FAIL() << "not found";
  } catch (const std::logic_error& error) {
    EXPECT_EQ(std::string(error.what()),
              "memory plan: 'reader' would read what 'second' wrote instead of 'first'");
  }
}

TEST(ImaginaryArena, KnowsWhoseBytesTheseAre) {
  Program program({100, 200});
  int mine = 0;
  EXPECT_EQ(program.imaginary.piece_of(program.bytes(1)), 1u);
  EXPECT_EQ(program.imaginary.piece_of({program.at(1) + 50, 10}), 1u);
  EXPECT_EQ(program.imaginary.piece_of(engine::bytes_of(&mine, 1)), ImaginaryArena::npos);
  EXPECT_THROW(program.imaginary.piece_of({program.at(0), 300}), std::logic_error);
}

}  // namespace
}  // namespace cifar_mpi::lower
