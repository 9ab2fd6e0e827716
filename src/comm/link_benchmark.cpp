#include <mpi.h>

#include <algorithm>
#include <optional>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/comm/benchmark.hpp"
#include "comm/add.hpp"
#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

constexpr std::size_t kLengths[] = {4, 4 << 10, 32 << 10, 64 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20};

double slowest(double mine, const World& world) { return std::ranges::max(world.gather(mine)); }

/// Seconds of a round on the slowest rank; ranks outside the ring only wait.
double time_rounds(const Neighbours& ring, std::size_t bytes, int rounds, const World& world) {
  std::vector<std::byte> out(bytes), in(bytes);
  world.barrier();
  const double begin = steady_seconds();
  for (int i = 0; i < rounds && ring.comm != MPI_COMM_NULL; ++i) {
    check(MPI_Sendrecv(out.data(), static_cast<int>(bytes), MPI_BYTE, ring.right(), 0, in.data(),
                       static_cast<int>(bytes), MPI_BYTE, ring.left(), 0, ring.comm, MPI_STATUS_IGNORE),
          "measuring the links", ring.right());
  }
  const double mine = ring.comm == MPI_COMM_NULL ? 0.0 : (steady_seconds() - begin) / rounds;
  return slowest(mine, world);
}

double median_round(const Neighbours& ring, std::size_t bytes, double seconds, const World& world) {
  constexpr std::size_t kFewestRuns = 3, kMostRuns = 9;
  const double once = time_rounds(ring, bytes, 2, world);  // also opens connections and warms the caches
  const int rounds = static_cast<int>(std::clamp(seconds / kMostRuns / once, 1.0, 1000.0));
  std::vector<double> times;
  double spent = 0.0;  // the same on all ranks, so that all measure as often
  while (times.size() < kFewestRuns || (times.size() < kMostRuns && spent < seconds)) {
    times.push_back(time_rounds(ring, bytes, rounds, world));
    spent += rounds * times.back();
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

double measure_memory(const World& world) {
  constexpr std::size_t kFloats = 1 << 20;
  constexpr int kTimes = 16;
  std::vector<float> a(kFloats, 1.0f), b(kFloats, 1.0f);
  world.barrier();
  const double begin = steady_seconds();
  for (int i = 0; i < kTimes; ++i) add(a.data(), b.data(), kFloats);
  return 3.0 * sizeof(float) * kFloats * kTimes / slowest(steady_seconds() - begin, world);
}

}  // namespace

LinkBenchmark benchmark_links(double seconds, const World& world) {
  const Nodes nodes = nodes_of(world);
  std::optional<Error> problem;
  if (nodes.count() < 2)
    problem.emplace(
        ErrorKind::usage,
        "links are measured between nodes, and all ranks are on one node; start ranks on at least two nodes");
  world.agree(problem);
  const auto own = nodes.of_rank.begin() + world.rank();
  const bool first = std::find(nodes.of_rank.begin(), own, *own) == own;
  const Communicator comm = WorldAccess::split(world, first ? 0 : -1);
  const Neighbours ring = first ? neighbours_in(comm.get(), true) : Neighbours{};
  LinkBenchmark result{.nodes = nodes.count(), .message = {}};
  for (const std::size_t bytes : kLengths)
    result.message.emplace_back(bytes, median_round(ring, bytes, seconds, world));
  const auto& [shorter, shorter_s] = result.message.front();
  const auto& [longer, longer_s] = result.message.back();
  result.bytes_per_s = static_cast<double>(longer - shorter) / std::max(longer_s - shorter_s, 1e-9);
  result.memory_bytes_per_s = measure_memory(world);
  return result;
}

}  // namespace cifar_mpi::comm
