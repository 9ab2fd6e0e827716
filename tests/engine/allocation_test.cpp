#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "cifar_mpi/engine/runner.hpp"
#include "fake_tasks.hpp"

// Counts every allocation of the test program.
namespace {
std::atomic<long> allocations{0};

void* counted(std::size_t size) {
  ++allocations;
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace cifar_mpi::engine {
namespace {

StepProgram chained_program(std::array<double, 4>& x) {
  StepProgram program("chain");
  const auto polls = [] { return 5; };
  program.run(kCompute, inline_task("a", {}, {bytes_of(&x[0], 1)}, [&x] { x[0] += 1.0; }));
  program.wait(kComm, program.set(kCompute));
  program.run(kComm, late_task(
                         "b", {bytes_of(&x[0], 1)}, {bytes_of(&x[1], 1)}, [&x] { x[1] += x[0]; }, polls));
  const MarkId summed = program.set(kComm);
  program.run(kCompute, inline_task("c", {}, {bytes_of(&x[2], 1)}, [&x] { x[2] += 1.0; }));
  program.wait(kCompute, summed);
  program.run(kCompute,
              inline_task("d", {bytes_of(&x[0], 3)}, {bytes_of(&x[3], 1)}, [&x] { x[3] += x[1] * x[2]; }));
  program.seal();
  return program;
}

TEST(HostRunner, AllocatesNothingInAReplay) {
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes, RunnerKind::audit}) {
    std::array<double, 4> x{};
    const auto runner =
        make_host_runner(chained_program(x), kind, WhileWaiting::spin, {bytes_of(x.data(), 4)});
    const long before = allocations;
    for (int i = 0; i < 10; ++i) runner->replay();
    runner->finish();
    EXPECT_EQ(allocations - before, 0) << "kind " << static_cast<int>(kind);
    EXPECT_EQ(x[0], 10.0);
    EXPECT_EQ(x[1], 55.0);
  }
}

TEST(AllocationCounter, Counts) {
  const long before = allocations;
  const std::vector<int> some(1000);
  EXPECT_GT(allocations, before) << some.size();
}

}  // namespace
}  // namespace cifar_mpi::engine
