#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>

#include "../support/temp_dir.hpp"
#include "cifar_mpi/base/text.hpp"
#include "forecast/all_reduce.hpp"

/// Compares the forecast of the all-reduces with SimGrid, which simulates ranks that run them. CIFAR_MPI_SIMGRID_SIZES=all
/// uses up to 256 ranks, for the table in src/forecast/README.md.
namespace cifar_mpi::forecast {
namespace {

constexpr double kLatency = 100e-6, kSpeed = 125e6, kCopySpeed = 1e12;

struct Case {
  Pattern pattern = Pattern::ring;
  int ranks = 2;
  int per_node = 1;
  std::size_t bytes = 65536;
  std::string_view wire = "fp32";
};

struct Simulated {
  double seconds = 0.0;
  double wrong = -1.0;
};

/// Nodes of `per_node` hosts, one for each rank, on a switch without limits. The link of a node carries both directions at once,
/// and memory takes no time.
void write_platform(const std::string& path, int ranks, int per_node) {
  const int nodes = (ranks + per_node - 1) / per_node;
  std::ofstream platform(path);
  platform << "<?xml version='1.0'?><!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
              "<platform version=\"4.1\"><zone id=\"all\" routing=\"Full\">\n";
  for (int n = 0; n < nodes; ++n)
    platform << "<cluster id=\"c" << n << "_\" prefix=\"n\" suffix=\"\" radical=\"" << n * per_node << "-"
             << std::min((n + 1) * per_node, ranks) - 1 << "\" router_id=\"r" << n
             << "\" speed=\"1Gf\" bw=\"1000GBps\" lat=\"0us\" loopback_bw=\"1000GBps\" loopback_lat=\"0us\" "
                "sharing_policy=\"SPLITDUPLEX\"/>\n";
  for (int n = 0; n < nodes; ++n)
    for (const char* const direction : {"to", "from"})
      platform << "<link id=\"" << direction << n << "\" bandwidth=\"125MBps\" latency=\"50us\"/>\n";
  for (int from = 0; from < nodes; ++from)
    for (int to = 0; to < nodes; ++to)
      if (from != to)
        platform << "<zoneRoute src=\"c" << from << "_\" dst=\"c" << to << "_\" gw_src=\"r" << from
                 << "\" gw_dst=\"r" << to << "\" symmetrical=\"NO\"><link_ctn id=\"from" << from
                 << "\"/><link_ctn id=\"to" << to << "\"/></zoneRoute>\n";
  platform << "</zone></platform>\n";
}

/// Runs `program` on simulated nodes. Only what `options` says takes time besides messages. Messages of less than 64 KiB do not
/// wait for their receiver, as in Open MPI over TCP. The collectives of Open MPI start 256 ranks in seconds, SMPI's own in
/// many minutes; `bruck` avoids an error in one of them.
std::string simulated(const std::string& program, int ranks, int per_node, const std::string& options) {
  const TempDir dir;
  write_platform(dir / "platform.xml", ranks, per_node);
  {
    std::ofstream hosts(dir / "hosts");
    for (int r = 0; r < ranks; ++r) hosts << "n" << r << "\n";
  }
  const std::string command =
      concat("cd ", dir.path(), " && timeout 1000 smpirun -np ", ranks,
             " -platform platform.xml -hostfile hosts --cfg=smpi/simulate-computation:no "
             "--cfg=network/crosstraffic:0 --cfg=network/TCP-gamma:0 --cfg=smpi/bw-factor:0:1.0 "
             "--cfg=smpi/lat-factor:0:1.0 "
             "--cfg=smpi/async-small-thresh:65536 --cfg=smpi/coll-selector:ompi --cfg=smpi/allgather:bruck "
             "--log=root.thresh:error ",
             options, " ", program);
  std::string said;
  FILE* const output = popen(command.c_str(), "r");
  if (output == nullptr) throw std::runtime_error("no shell can be started");
  for (int c = 0; (c = std::fgetc(output)) != EOF;) said.push_back(static_cast<char>(c));
  const int status = pclose(output);
  EXPECT_EQ(status, 0) << command << '\n' << said;
  return said;
}

Simulated simulate(const Case& c) {
  const std::string said = simulated(concat(CIFAR_MPI_ALL_REDUCE_ON_SMPI " ", to_string(c.pattern), " ",
                                            c.bytes, " ", c.wire, " ", c.per_node),
                                     c.ranks, c.per_node, "--cfg=smpi/test:0");
  Simulated found;
  if (std::sscanf(said.c_str(), "%lf %lf", &found.seconds, &found.wrong) != 2) found.wrong = -1.0;
  return found;
}

/// In two-level the ranks of a node do not keep step for ever, as they do in the forecast.
void compare(const Case& c) {
  const double most = c.pattern == Pattern::two_level ? 0.1 : 0.03;
  const Links links{
      .message = {{0.0, kLatency}}, .bytes_per_s = kSpeed, .memory_bytes_per_s = 2.0 * kCopySpeed};
  Cluster cluster{links, c.ranks, c.per_node};
  const double float_bytes = c.wire == "fp32" ? 4.0 : 2.0;
  const Simulated found = simulate(c);
  const double forecast =
      all_reduce_seconds(c.pattern, static_cast<double>(c.bytes) / 4.0, float_bytes, cluster);
  const std::string what = concat(to_string(c.pattern), ", ", c.ranks, " ranks, ", c.per_node, " per node, ",
                                  c.bytes, " bytes, ", c.wire);
  std::printf("%-60s SMPI %10.6f ms, forecast %10.6f ms, %+.1f %%\n", what.c_str(), 1e3 * found.seconds,
              1e3 * forecast, 100.0 * (forecast / found.seconds - 1.0));
  EXPECT_EQ(found.wrong, 0.0) << what;
  EXPECT_LT(std::abs(forecast / found.seconds - 1.0), most) << what;
}

TEST(ForecastAgainstSimGrid, IsCloseForEveryAllReduce) {
  compare({Pattern::ring, 2});
  compare({Pattern::ring, 16});
  compare({Pattern::ring, 5, 1, 1 << 20, "bf16"});
  compare({Pattern::ring, 13, 4});
  compare({Pattern::doubling, 5});
  compare({Pattern::doubling, 16});
  compare({Pattern::doubling, 8, 2});
  compare({Pattern::doubling, 13, 4, 4096});
  compare({Pattern::doubling, 11, 4, 1 << 20});
  compare({Pattern::two_level, 8, 2});
  compare({Pattern::two_level, 16, 4, 1 << 20});
  compare({Pattern::two_level, 64, 4});
}

TEST(ForecastAgainstSimGrid, IsCloseOnManyRanks) {
  const char* const sizes = getenv("CIFAR_MPI_SIMGRID_SIZES");
  if (sizes == nullptr) GTEST_SKIP() << "takes minutes; set CIFAR_MPI_SIMGRID_SIZES=all";
  for (const auto& [_, pattern] : names_of(Pattern{})) {
    for (const int per_node : {1, 4}) {
      for (const int ranks : {2, 3, 4, 8, 13, 16, 27, 57, 64, 128, 256}) {
        for (const std::size_t bytes : {4096, 65536, 1048576})
          if (ranks > per_node && (bytes < 1048576 || ranks <= 64))
            compare({pattern, ranks, per_node, bytes});
      }
    }
  }
}

/// The steps of tests/comm: all-reduces without windows, sums between compute tasks and of several blocks, and servers.
TEST(UpdatesOnSimGrid, GiveTheRightParameters) {
  for (const int ranks : {4, 8}) {
    const std::string said = simulated(
        CIFAR_MPI_UPDATES_ON_SMPI
        " '--gtest_filter=*ReducedStep*:*StepWithRankSums*:AllReduceUpdate.SumsSeveral*:ServerUpdate.Adds*:"
        "ServerUpdate.Tells*:ServerUpdate.Completes*-*/window'",
        ranks, 1, "--cfg=smpi/test:1e-5");
    EXPECT_NE(said.find("[  PASSED  ] 14 tests."), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace cifar_mpi::forecast
