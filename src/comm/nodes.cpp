#include <mpi.h>

#include <algorithm>
#include <map>

#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {

namespace {

/// The number of ranks of each node.
std::vector<int> sizes_of(const Nodes& nodes) {
  std::vector<int> sizes(static_cast<std::size_t>(nodes.count()), 0);
  for (const int node : nodes.of_rank) ++sizes[static_cast<std::size_t>(node)];
  return sizes;
}

}  // namespace

int Nodes::count() const { return of_rank.empty() ? 0 : std::ranges::max(of_rank) + 1; }

int Nodes::ranks_on(int node) const { return static_cast<int>(std::ranges::count(of_rank, node)); }

int Nodes::fewest_ranks() const { return of_rank.empty() ? 0 : std::ranges::min(sizes_of(*this)); }

int Nodes::most_ranks() const { return of_rank.empty() ? 0 : std::ranges::max(sizes_of(*this)); }

Nodes nodes_of(const World& world) {
  int lowest = world.rank();
  check(MPI_Bcast(&lowest, 1, MPI_INT, 0, WorldAccess::node(world)), "naming the nodes", 0);
  Nodes nodes;
  std::map<int, int> numbers;
  for (const int leader : world.gather(lowest)) {
    nodes.of_rank.push_back(numbers.emplace(leader, static_cast<int>(numbers.size())).first->second);
  }
  return nodes;
}

}  // namespace cifar_mpi::comm
