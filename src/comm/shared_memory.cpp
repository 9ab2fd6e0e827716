#include "comm/shared_memory.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace cifar_mpi::comm {
namespace {

/// As Open MPI chooses it (osc_sm_backing_directory); others use /dev/shm.
std::string backing_folder() {
  if (const char* named = std::getenv("OMPI_MCA_osc_sm_backing_directory")) return named;
  return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path().string();
}

}  // namespace

SharedMemory shared_memory() {
  SharedMemory found{backing_folder(), 0};
  struct statvfs status {};
  if (statvfs(found.place.c_str(), &status) == 0) {
    found.free_bytes = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  }
  return found;
}

std::uint64_t shared_memory_needed(int ranks, std::uint64_t bytes_each) {
  constexpr std::uint64_t kLibrary = 4 << 20;  // what Open MPI maps per rank and fills as messages arrive
  const std::uint64_t window = static_cast<std::uint64_t>(ranks) * bytes_each;
  return window + window / 8 + static_cast<std::uint64_t>(ranks) * kLibrary;
}

}  // namespace cifar_mpi::comm
