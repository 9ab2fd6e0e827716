#pragma once

#include <cstdint>
#include <string>

namespace cifar_mpi::comm {

/// The free shared memory for the MPI library on this node, and its folder.
struct SharedMemory {
  std::string place;  ///< the folder of the library's backing files
  std::uint64_t free_bytes = 0;
};

/// Containers often have 64 MB there, and writing more ends the process with SIGBUS. The folder is /dev/shm,
/// or that of OMPI_MCA_osc_sm_backing_directory; one that cannot be queried counts as full. (The MPI
/// library's tools interface could tell, but Open MPI 4 then loads all its plugins again: 0.2 s.)
SharedMemory shared_memory();

/// The bytes that must be free before `ranks` ranks of a node allocate `bytes_each`, including the MPI
/// library's own needs.
std::uint64_t shared_memory_needed(int ranks, std::uint64_t bytes_each);

}  // namespace cifar_mpi::comm
