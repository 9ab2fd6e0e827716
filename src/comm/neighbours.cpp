#include "comm/neighbours.hpp"

#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {

Neighbours neighbours_in(MPI_Comm comm, bool network) {
  Neighbours neighbours{comm};
  neighbours.network = network;
  check(MPI_Comm_rank(comm, &neighbours.rank), "asking for the place among the ranks");
  check(MPI_Comm_size(comm, &neighbours.ranks), "asking for the number of ranks");
  return neighbours;
}

}  // namespace cifar_mpi::comm
