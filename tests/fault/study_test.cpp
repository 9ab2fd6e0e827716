#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <functional>

#include "app/command.hpp"
#include "cifar_mpi/base/text.hpp"
#include "support/temp_dir.hpp"

/// Faults of emulated nodes that tools/study must name. Other work of the machine hides a slow node, or makes
/// another look slow, so what compares times may be measured three times.
namespace cifar_mpi::test {
namespace {

class FaultyCluster : public testing::Test {
 protected:
  /// A study of emulated nodes, after the shell command `before` on node1. node2 runs the programs with
  /// `fault`, the other nodes with `of_others` (fault/preload.cpp).
  Outcome study(int nodes, const std::string& options, const std::string& fault,
                const std::string& before = "true", const std::string& of_others = "none:0:0") {
    const std::string program = folder_ / "cifar_mpi_bench";
    write_file(program,
               concat("#!/bin/sh\nFAULT=", of_others, "\n[ \"$(hostname)\" != node2 ] || FAULT=", fault,
                      "\nexport FAULT LD_PRELOAD=" CIFAR_MPI_FAULT_PRELOAD "\nexec " CIFAR_MPI_BIN
                      "/cifar_mpi_bench \"$@\"\n"));
    chmod(program.c_str(), 0755);
    std::string hosts = "node1";
    for (int i = 2; i <= nodes; ++i) hosts += concat(",node", i);
    const std::string tools = CIFAR_MPI_SOURCE_ROOT "/tools/";
    return run_command(
        concat("command -v python3 >/dev/null || exit 77; exec ", tools, "shaped_nodes --rate 1gbit --nodes ",
               nodes, " --once -- sh -c '", before, "; exec ", tools, "study --hosts ", hosts,
               " --device cpu --threads 1 --batch-size 8 --seconds 0.05 --sizes 4K ", options, " --build ",
               folder_.path(), " --out ", folder_ / concat("study", ++studies_), "'"));
  }
  /// The first of three studies that `names` what it must, or the last.
  static Outcome first_that(const std::function<bool(const std::string&)>& names,
                            const std::function<Outcome()>& measure) {
    Outcome outcome = measure();
    for (int time = 1; time < 3 && outcome.code != 77 && !names(outcome.output); ++time) {
      std::printf("measured again after:\n%s\n", outcome.output.c_str());
      outcome = measure();
    }
    return outcome;
  }

 private:
  TempDir folder_;
  int studies_ = 0;
};

TEST_F(FaultyCluster, NodeWithAFlippedBitIsNamed) {
  const Outcome outcome = study(3, "--parts nodes --rounds 2", "bit:0:5");
  if (outcome.code == 77) GTEST_SKIP() << outcome.output;
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "node2 computes other bits than the other nodes"), 1)
      << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, " bits than"), 1) << outcome.output;
}

TEST_F(FaultyCluster, NodeThatGetsLessProcessorTimeIsNamedForThat) {
  // Both mostly sleep, so that other load on the cores matters little.
  const auto names = [](const std::string& said) {
    return count_lines_with(said, "  node2 gets ") == 1 && count_lines_with(said, "in images_per_s") == 0;
  };
  const Outcome outcome = first_that(
      names, [&] { return study(2, "--parts nodes --rounds 6 --seconds 0.3", "slow:0:10", "true", "slow:0:5"); });
  if (outcome.code == 77) GTEST_SKIP() << outcome.output;
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "less processor time than the median"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "  node2 gets "), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "in images_per_s"), 0) << outcome.output;
}

TEST_F(FaultyCluster, SlowNodeIsNamed) {
  const auto names = [](const std::string& said) {
    return count_lines_with(said, "  node2 is ") == count_lines_with(said, " worse than the median") &&
           count_lines_with(said, "in images_per_s") == 1;
  };
  const Outcome outcome =
      first_that(names, [&] { return study(2, "--parts nodes --seconds 0.4", "slower:0:50"); });
  if (outcome.code == 77) GTEST_SKIP() << outcome.output;
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "  node2 is "),
            count_lines_with(outcome.output, " worse than the median"))
      << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "in images_per_s"), 1) << outcome.output;
}

TEST_F(FaultyCluster, SlowLinkIsNamed) {
  const auto names = [](const std::string& said) {
    return count_lines_with(said, "  The link of node3 is slow") == 1;
  };
  const Outcome outcome = first_that(names, [&] {
    return study(3, "--parts links --rounds 2", "none:0:0",
                 "nsenter -t $(cat /run/node3.pid) -n tc qdisc change dev eth0 root tbf rate 200mbit burst "
                 "256kb latency 20ms");
  });
  if (outcome.code == 77) GTEST_SKIP() << outcome.output;
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "  The link of node3 is slow"), 1) << outcome.output;
}

}  // namespace
}  // namespace cifar_mpi::test
