#pragma once

#include <cstdint>
#include <string>

namespace cifar_mpi::comm {

/// How much shared memory the MPI library can still get on this node, and where that is.
struct SharedMemory {
  std::string place;  ///< the folder the library backs it with
  std::uint64_t free_bytes = 0;
};

/// Containers often have 64 MB there, and writing beyond ends the process with SIGBUS. The folder is
/// /dev/shm, or what OMPI_MCA_osc_sm_backing_directory names; one that cannot be asked counts as full. (The
/// MPI library could be asked itself through its tools interface, but Open MPI 4 then loads all its plugins
/// once more: 0.2 s.)
SharedMemory shared_memory();

/// What must be free before `ranks` ranks of a node take `bytes_each`, with room for the MPI library's own
/// needs.
std::uint64_t shared_memory_needed(int ranks, std::uint64_t bytes_each);

}  // namespace cifar_mpi::comm
