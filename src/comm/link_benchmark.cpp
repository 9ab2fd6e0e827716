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

/// One message to the right and one from the left: around a ring at once, between two ranks one after the other, because
/// both directions would share a connection, which MPI over TCP does not fill in both at once.
void pass_messages(const Neighbours& ring, std::vector<std::byte>& out, std::vector<std::byte>& in) {
  const int bytes = static_cast<int>(out.size());
  constexpr const char* kAction = "measuring the links";
  const auto receive = [&] {
    check(MPI_Recv(in.data(), bytes, MPI_BYTE, ring.left(), 0, ring.comm, MPI_STATUS_IGNORE), kAction,
          ring.left());
  };
  if (ring.ranks > 2) {
    check(MPI_Sendrecv(out.data(), bytes, MPI_BYTE, ring.right(), 0, in.data(), bytes, MPI_BYTE, ring.left(),
                       0, ring.comm, MPI_STATUS_IGNORE),
          kAction, ring.right());
    return;
  }
  if (ring.rank == 1) receive();
  check(MPI_Send(out.data(), bytes, MPI_BYTE, ring.right(), 0, ring.comm), kAction, ring.right());
  if (ring.rank == 0) receive();
}

/// Seconds of a message on the slowest rank; ranks outside the ring only wait.
double time_messages(const Neighbours& ring, std::size_t bytes, int rounds, const World& world) {
  std::vector<std::byte> out(bytes), in(bytes);
  const bool takes_part = ring.comm != MPI_COMM_NULL;
  const int in_a_row = ring.ranks > 2 ? rounds : 2 * rounds;
  world.barrier();
  const double begin = steady_seconds();
  for (int i = 0; i < rounds && takes_part; ++i) pass_messages(ring, out, in);
  const double mine = takes_part ? (steady_seconds() - begin) / in_a_row : 0.0;
  return slowest(mine, world);
}

double median_message(const Neighbours& ring, std::size_t bytes, double seconds, const World& world) {
  constexpr std::size_t kFewestRuns = 3, kMostRuns = 9;
  const double once = time_messages(ring, bytes, 2, world);  // also opens connections and warms the caches
  const int rounds = static_cast<int>(std::clamp(seconds / kMostRuns / once, 1.0, 1000.0));
  std::vector<double> times;
  double spent = 0.0;  // the same on all ranks, so that all measure as often
  while (times.size() < kFewestRuns || (times.size() < kMostRuns && spent < seconds)) {
    times.push_back(time_messages(ring, bytes, rounds, world));
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
    result.message.emplace_back(bytes, median_message(ring, bytes, seconds, world));
  const auto& [shorter, shorter_s] = result.message.front();
  const auto& [longer, longer_s] = result.message.back();
  result.bytes_per_s = static_cast<double>(longer - shorter) / std::max(longer_s - shorter_s, 1e-9);
  result.memory_bytes_per_s = measure_memory(world);
  return result;
}

}  // namespace cifar_mpi::comm
