#include "comm/place.hpp"

#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {

Place place_in(MPI_Comm comm, bool network) {
  Place place{comm};
  place.network = network;
  check(MPI_Comm_rank(comm, &place.rank), "asking for the place among the ranks");
  check(MPI_Comm_size(comm, &place.ranks), "asking for the number of ranks");
  return place;
}

}  // namespace cifar_mpi::comm
