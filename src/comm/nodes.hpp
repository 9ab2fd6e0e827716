#pragma once

#include <vector>

#include "cifar_mpi/comm/world.hpp"

namespace cifar_mpi::comm {

/// Which ranks share a node, and so memory. Tests simulate it: four ranks of one machine then behave as 2 + 2 or 3 + 1.
struct Nodes {
  std::vector<int> of_rank;  ///< the node of each rank; nodes are numbered by their lowest rank, from 0

  int count() const;
  int ranks_on(int node) const;
  int fewest_ranks() const;  ///< on any node
  int most_ranks() const;    ///< on any node
};

/// The nodes as MPI sees them. Communicates: every rank calls it.
Nodes nodes_of(const World& world);

}  // namespace cifar_mpi::comm
