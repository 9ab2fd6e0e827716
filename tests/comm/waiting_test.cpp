#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ranges>
#include <string>
#include <thread>
#include <vector>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/engine/runner.hpp"
#include "support/mpi_world.hpp"

namespace {
std::atomic<long> yields{0};
}

/// Replaces the C library's function in this program, and counts calls.
extern "C" int sched_yield() noexcept {
  ++yields;
  return static_cast<int>(syscall(SYS_sched_yield));
}

/// Whether a rank that waits in an all-reduce yields its core.
namespace cifar_mpi::comm {
namespace {

using engine::bytes_of;
using engine::kComm;
using engine::kCompute;
using engine::WhileWaiting;
using test::test_world;

/// One all-reduce as in a step.
engine::StepProgram program_of(Collective& collective, std::span<float> data) {
  engine::StepProgram program("wait");
  const engine::Bytes bytes = bytes_of(data.data(), data.size());
  program.run(kCompute, {"values", {}, {bytes}, [](engine::Lane&) {}, {}});
  program.wait(kComm, program.set(kCompute));
  program.run(kComm, collective.all_reduce("all-reduce", data, 0));
  program.wait(kCompute, program.set(kComm));
  program.finalize();
  return program;
}

/// How often this rank yields in an all-reduce that rank 0 enters 50 ms late.
long yields_of(const std::string& name, WhileWaiting waiting) {
  const auto collective = make_collective(name, test_world());
  const Buffer buffer = collective->allocate(4000);
  const auto runner = engine::make_host_runner(program_of(*collective, buffer.span<float>()),
                                               engine::RunnerKind::lanes, waiting, {});
  test_world().barrier();
  if (test_world().rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const long before = yields;
  runner->replay();
  return yields - before;
}

TEST(WaitingRanks, LeaveTheirCoreToTheOthersInEveryCollective) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs 2 ranks or more";
  for (const CollectiveInfo& info : collectives()) {
    // under load a rank may arrive after the late one and not wait: then try again
    std::vector<double> counts;
    const auto too_few = [&] {
      return std::ranges::any_of(counts | std::views::drop(1), [](double n) { return n <= 10; });
    };
    double mine = 0;
    for (int time = 0; time == 0 || (time < 40 && too_few()); ++time) {
      mine += static_cast<double>(yields_of(std::string(info.name), WhileWaiting::yield));
      counts = test_world().gather(mine);
    }
    EXPECT_TRUE(test_world().rank() == 0 || mine > 10) << info.name << ": " << mine;
  }
}

TEST(WaitingRanks, KeepTheirCoreWhereItIsTheirOwn) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs 2 ranks or more";
  // Only the window, because the MPI library itself may yield while it polls.
  EXPECT_EQ(yields_of("window", WhileWaiting::spin), 0);
}

}  // namespace
}  // namespace cifar_mpi::comm
