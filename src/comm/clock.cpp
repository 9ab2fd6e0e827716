#include "cifar_mpi/comm/clock.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "comm/mpi_check.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

constexpr int kProbes = 32;
constexpr int kClockTag = 2;

std::int64_t receive(MPI_Comm comm, int from) {
  std::int64_t value = 0;
  check(MPI_Recv(&value, 1, MPI_INT64_T, from, kClockTag, comm, MPI_STATUS_IGNORE), "comparing clocks", from);
  return value;
}

void send(MPI_Comm comm, int to, std::int64_t value) {
  check(MPI_Send(&value, 1, MPI_INT64_T, to, kClockTag, comm), "comparing clocks", to);
}

/// Rank 0's part, for one other host.
void ask(MPI_Comm comm, int rank) {
  std::array<ClockProbe, kProbes> probes;
  for (ClockProbe& probe : probes) {
    probe.asked = steady_nanoseconds();
    send(comm, rank, 0);
    probe.answered = receive(comm, rank);
    probe.received = steady_nanoseconds();
  }
  const ClockReading found = read_clock(probes);
  for (const std::int64_t part : {found.at, found.offset, found.uncertainty}) send(comm, rank, part);
}

ClockReading answer(MPI_Comm comm) {
  for (int i = 0; i < kProbes; ++i) {
    receive(comm, 0);
    send(comm, 0, steady_nanoseconds());
  }
  ClockReading found;
  for (std::int64_t* part : {&found.at, &found.offset, &found.uncertainty}) *part = receive(comm, 0);
  return found;
}

}  // namespace

ClockReading read_clock(std::span<const ClockProbe> probes) {
  const ClockProbe& best = *std::ranges::min_element(probes, [](const ClockProbe& a, const ClockProbe& b) {
    return a.received - a.asked < b.received - b.asked;
  });
  const std::int64_t trip = best.received - best.asked;
  return {best.answered, best.asked + trip / 2 - best.answered, trip - trip / 2};
}

std::int64_t ClockTranslation::to_rank_zero(std::int64_t local) const {
  const std::int64_t span = after.at - before.at;
  if (span <= 0 || before.offset == after.offset) return local + after.offset;
  const double share = static_cast<double>(local - before.at) / static_cast<double>(span);
  return local + before.offset + std::llround(share * static_cast<double>(after.offset - before.offset));
}

std::int64_t ClockTranslation::uncertainty() const { return std::max(before.uncertainty, after.uncertainty); }

ClockReading compare_clocks(const World& world) {
  if (world.node_size() == world.size()) return {steady_nanoseconds(), 0, 0};
  const MPI_Comm all = WorldAccess::all(world), node = WorldAccess::node(world);
  int leader = world.rank();
  check(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "comparing clocks");
  const std::vector<int> leaders = world.gather(leader);
  ClockReading found{steady_nanoseconds(), 0, 0};
  for (int rank = 1; world.rank() == 0 && rank < world.size(); ++rank) {
    if (leaders[static_cast<std::size_t>(rank)] == rank) ask(all, rank);
  }
  if (leader == 0) return found;
  if (leader == world.rank()) found = answer(all);
  std::array<std::int64_t, 3> parts{found.at, found.offset, found.uncertainty};
  check(MPI_Bcast(parts.data(), static_cast<int>(parts.size()), MPI_INT64_T, 0, node), "comparing clocks");
  return {parts[0], parts[1], parts[2]};
}

}  // namespace cifar_mpi::comm
