#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cifar_mpi/comm/collective.hpp"
#include "cuda/device.hpp"

namespace cifar_mpi::cuda {

struct NcclOptions {
  bool share_gpus = false;
  std::string algorithm = "auto";  ///< ring, tree or auto: NCCL's own choice
  bool nvls = false;               ///< sums in NVLink switches (NVLS) may be part of that choice
};

/// Sums over the GPUs of all ranks by NCCL.
///
///   "nccl", "auto"  ncclAllReduce: bits depend on ranks, length and NCCL's choice, and are the same in every
///                   run on one machine, unless NVLS is allowed (see nvls_note), which `note` then says
///   "doubling"      ncclAllGather, then each rank adds all arrays in the tree of the host's `doubling`: the
///                   same bits, for --reproducible; memory for all ranks' arrays
///
///   data   [n] f32, device memory from `allocate`, replaced by the sum; any n, also n = 0
///   order  enqueued on the comm lane's stream; may be captured. `allocate` sums once to set up all
///          connections
///   end    on an exception a separate thread aborts the communicator, with a deadline
///
/// Throws AgreedError{usage} for another name or a wire that is not fp32, AgreedError{device} when two ranks
/// have one GPU without share_gpus, AgreedError{comm} when NCCL cannot start. The watches of the device's
/// link report later errors of NCCL.
std::unique_ptr<comm::Collective> make_nccl(Device& device, std::string_view name, const comm::World& world,
                                            comm::Wire wire, const NcclOptions& options);

}  // namespace cifar_mpi::cuda
