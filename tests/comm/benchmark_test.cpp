#include "cifar_mpi/comm/benchmark.hpp"

#include <gtest/gtest.h>

#include "cifar_mpi/comm/collective.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::comm {
namespace {

using test::test_world;

TEST(AllReduceBenchmark, MeasuresEveryCollectiveAtEveryLength) {
  AllReduceBenchmarkConfig config;
  config.bytes = {4, 4096, 1'000'004};
  config.seconds = 0.001;
  const AllReduceBenchmark benchmark = benchmark_all_reduce(config, test_world());
  ASSERT_EQ(benchmark.timings.size(), 3 * collectives().size());
  for (std::size_t i = 0; i < benchmark.timings.size(); ++i) {
    const AllReduceTiming& t = benchmark.timings[i];
    EXPECT_EQ(t.bytes, config.bytes[i / collectives().size()]);
    EXPECT_EQ(t.algorithm, collectives()[i % collectives().size()].name);
    EXPECT_EQ(t.ranks, test_world().size());
    EXPECT_EQ(t.wrong, 0u) << t.algorithm << ", " << t.bytes << " bytes";
    EXPECT_GE(t.runs, 5);
    EXPECT_LE(t.least_s, t.median_s);
    EXPECT_LE(t.median_s, t.p99_s);
    EXPECT_GT(t.copy_bytes_per_s, 0.0);
    EXPECT_GT(t.mpi_allreduce_s.value_or(0.0), 0.0);
  }
}

TEST(AllReduceBenchmark, MeasuresWhatWasNamed) {
  AllReduceBenchmarkConfig config{{4096}, {"mpi", "ring"}, 0.001};
  const AllReduceBenchmark benchmark = benchmark_all_reduce(config, test_world());
  ASSERT_EQ(benchmark.timings.size(), 2u);
  EXPECT_EQ(benchmark.timings[0].algorithm, "mpi");
  EXPECT_EQ(benchmark.timings[1].algorithm, "ring");
}

TEST(AllReduceTiming, DerivesBandwidths) {
  AllReduceTiming t;
  t.bytes = 3'000'000;
  t.median_s = 1e-3;
  t.ranks = 4;
  EXPECT_DOUBLE_EQ(t.algorithm_bandwidth(), 3e9);
  EXPECT_DOUBLE_EQ(t.bus_bandwidth(), 4.5e9);
  t.copy_bytes_per_s = 6e9;
  EXPECT_DOUBLE_EQ(t.copies(), 2.0);
  t.ranks = 1;
  EXPECT_DOUBLE_EQ(t.bus_bandwidth(), 0.0);
}

}  // namespace
}  // namespace cifar_mpi::comm
