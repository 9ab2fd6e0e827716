#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

/// A GPU for tests on machines that have none: CUDA's runtime, as much of cuDNN, cuBLASLt and NCCL as the
/// backend calls, and its own kernels, one after another. The backend is linked with it instead of with the
/// libraries, unchanged.
///
/// It is strict where a real GPU may be lucky:
/// - Streams are processed in a random order, subject to what CUDA promises: the order within a stream, and
///   events. Blocks of kernels on two streams mix. At random, nothing begins before the host waits. So a missing
///   wait shows.
/// - Captured work becomes a graph with exactly the edges that CUDA would see, and runs in any order that they
///   allow. Calls that break a capture in CUDA break it here.
/// - Device memory can be touched only while work runs, begins as 0xFF, is followed by protected pages,
///   and is never reused. Pinned memory must not be freed while work runs.
///
/// It cannot show speed, races inside a kernel between two barriers (it changes only the order), the behaviour of the
/// libraries, or how a GPU rounds special functions.
///
/// Environment: STAND_IN_SEED, STAND_IN_GPUS (1), STAND_IN_MIB (memory of each process, 4096),
/// STAND_IN_CUDNN_MIB (workspace of cuDNN's first deterministic proposal, 2^20), STAND_IN_LINK_BREAKS
/// (after how many pieces of 256 KiB NCCL loses its network); CUDA_VISIBLE_DEVICES as for CUDA, by number.
/// STAND_IN_FAULT selects a fault:
///   conv      cuDNN's forward convolutions leave out the last tap of each window
///   product   the last column of what cuBLASLt multiplies lacks the last term of its sums
///   stale     a graph's first kernel does nothing from the second launch on, so its result does not change
///   relu      cuBLASLt's ReLU makes zeros of NaN
///   nan       so do cuDNN's forward convolutions
///   sum       NCCL loses the last 16 values of the first rank
///   hang      no kernel ends
///   dnn       cuDNN cannot be opened
///   driver    the driver is too old
///   best      the first algorithm that cuDNN (with STAND_IN_CUDNN_MIB=1) and cuBLASLt propose does not run
///   backward  none of cuDNN's data gradients runs; no_forward, no_weights: none of its forward passes, weight gradients
///   blas      cuBLASLt has no algorithm for any product; no_blas: it cannot be loaded
///   busy      another process uses it, and its compute mode is exclusive
///   capture   no stream can be captured; end_capture, instantiate, launch: no graph gets past this call
///   nccl_graph  no call of NCCL can be captured
///   init      NCCL never connects the ranks
///   flip      a bit of what cuDNN writes is wrong now and then
namespace cifar_mpi::stand_in {

/// Enqueues work on the stream, or adds it to the graph that the stream captures.
void start(cudaStream_t stream, const char* name, std::function<void()> work);

/// The same for work that waits for other ranks or for a thread of the host; the backend's hold, which does so for at most
/// 20 ms, may use the other.
void start_collective(cudaStream_t stream, const char* name, std::function<void()> work);

/// The same for work with scratch memory: it takes a while, and fails if something else writes there meanwhile.
void start(cudaStream_t stream, const char* name, void* workspace, std::size_t bytes,
           std::function<void()> work);

/// Whether STAND_IN_FAULT names this fault.
bool has_fault(const char* name);

/// The time of the device's clock.
std::uint64_t nanoseconds();

/// Stable and different for each GPU of this host.
std::string device_uuid();

}  // namespace cifar_mpi::stand_in
