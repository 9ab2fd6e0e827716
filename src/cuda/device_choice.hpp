#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cifar_mpi::cuda {

/// Who asks for a GPU, and what there is.
struct DeviceQuestion {
  int local_rank = 0;  ///< among the ranks of this host
  int local_ranks = 1;
  int visible = 0;     ///< GPUs this process sees; CUDA_VISIBLE_DEVICES has been applied
  bool share = false;  ///< ranks may share a GPU
};

/// The GPU, by local order. A process that sees one takes it: so launchers that give each task a GPU of its
/// own work, and ranks that really share one are found when they compare notes. Throws Error{device} naming
/// --share-gpus when there are more ranks than GPUs and they may not share.
int choose_device(const DeviceQuestion& question);

/// How to build for a GPU that the binary has no code for: "build with …". `capability` as 70 for 7.0, `toolkit` as
/// CUDART_VERSION counts.
std::string build_advice(int capability, int toolkit);

/// What one rank uses.
struct DeviceIdentity {
  std::ptrdiff_t host = 0;  ///< equal on one host
  std::uint64_t gpu = 0;    ///< equal for one GPU of a host
};

/// The first rank that uses the GPU of a rank before it, and that rank; both −1 when there is none.
struct SharedDevice {
  int rank = -1;
  int other = -1;
};
template <class Identities>
SharedDevice find_shared_device(const Identities& ranks) {
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    for (int other = 0; other < rank; ++other) {
      const DeviceIdentity &a = ranks[static_cast<std::size_t>(rank)],
                           &b = ranks[static_cast<std::size_t>(other)];
      if (a.host == b.host && a.gpu == b.gpu) return {rank, other};
    }
  }
  return {};
}

}  // namespace cifar_mpi::cuda
