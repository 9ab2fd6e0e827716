#include "cifar_mpi/comm/benchmark.hpp"

#include <gtest/gtest.h>

#include "cifar_mpi/cuda/backend.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::cuda {
namespace {

TEST(NcclBenchmark, SumsExactlyBesideACopy) {
  if (const std::string reason = unusable(); !reason.empty())
    GTEST_SKIP() << "LOUD: nothing of this test ran: " << reason;
  const comm::World& world = test::test_world();
  engine::BackendOptions options;
  options.local_rank = world.node_rank();
  options.local_ranks = world.node_size();
  options.share_gpus = true;
  const comm::Platform platform = make_platform(options);
  const comm::AllReduceBenchmarkConfig config{{4, 4096, 1'000'004}, {"nccl", "doubling"}, 0.01};
  const comm::AllReduceBenchmark benchmark = comm::benchmark_all_reduce(config, world, platform);
  ASSERT_EQ(benchmark.timings.size(), 2 * config.bytes.size());
  for (const comm::AllReduceTiming& t : benchmark.timings) {
    EXPECT_EQ(t.resolved, t.algorithm == "nccl" ? "nccl" : "doubling through nccl");
    EXPECT_EQ(t.wrong, 0u) << t.bytes << " bytes";
    EXPECT_GT(t.least_s, 0.0);
    EXPECT_GT(t.copy_bytes_per_s, 0.0);
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda
