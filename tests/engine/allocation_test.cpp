#include <gtest/gtest.h>

#include <array>

#include "cifar_mpi/engine/runner.hpp"
#include "fake_tasks.hpp"
#include "support/allocation_count.hpp"

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
  program.finalize();
  return program;
}

TEST(HostRunner, AllocatesNothingInAReplay) {
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes, RunnerKind::audit}) {
    std::array<double, 4> x{};
    const auto runner =
        make_host_runner(chained_program(x), kind, WhileWaiting::spin, {bytes_of(x.data(), 4)});
    const long before = test::allocations();
    for (int i = 0; i < 10; ++i) runner->replay();
    runner->finish();
    EXPECT_EQ(test::allocations() - before, 0) << "kind " << static_cast<int>(kind);
    EXPECT_EQ(x[0], 10.0);
    EXPECT_EQ(x[1], 55.0);
  }
}

TEST(AllocationCounter, Counts) {
  const long before = test::allocations();
  const std::vector<int> some(1000);
  EXPECT_GT(test::allocations(), before) << some.size();
}

}  // namespace
}  // namespace cifar_mpi::engine
