#include <mpi.h>

#include <algorithm>
#include <map>

#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {

int Nodes::count() const {
  return of_rank.empty() ? 0 : *std::max_element(of_rank.begin(), of_rank.end()) + 1;
}

int Nodes::ranks_on(int node) const {
  return static_cast<int>(std::count(of_rank.begin(), of_rank.end(), node));
}

int Nodes::fewest_ranks() const {
  int fewest = ranks_on(0);
  for (int node = 1; node < count(); ++node) fewest = std::min(fewest, ranks_on(node));
  return fewest;
}

int Nodes::most_ranks() const {
  int most = 0;
  for (int node = 0; node < count(); ++node) most = std::max(most, ranks_on(node));
  return most;
}

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
