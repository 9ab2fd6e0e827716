#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cifar_mpi::cuda {

/// A rank that needs a GPU, and the GPUs available.
struct DeviceQuestion {
  int local_rank = 0;  ///< among the ranks of this host
  int local_ranks = 1;
  int visible = 0;     ///< GPUs this process sees; CUDA_VISIBLE_DEVICES has been applied
  bool share = false;  ///< ranks may share a GPU
};

/// The GPU, by local order. A process that sees one GPU uses it, which supports launchers that give each task
/// its own; ranks that share one by mistake are found when they compare GPUs. Throws Error{device} naming
/// --share-gpus when there are more ranks than GPUs and they may not share.
int choose_device(const DeviceQuestion& question);

/// Advice for a GPU that the binary has no code for: "build with …". `capability` is 70 for 7.0,
/// `toolkit` is a CUDART_VERSION.
std::string build_advice(int capability, int toolkit);

/// The host and GPU of one rank.
struct DeviceIdentity {
  std::ptrdiff_t host = 0;  ///< equal on one host
  std::uint64_t gpu = 0;    ///< equal for one GPU of a host
};

/// The first rank that uses the GPU of an earlier rank, and that earlier rank; both −1 if there is none.
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
