#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cuda/handles.hpp"
#include "cuda/host_link.hpp"
#include "cuda/trial.hpp"

namespace cifar_mpi::cuda {

/// The GPU of this process: its streams, memory and libraries. There is one per backend; it outlives its users.
class Device {
 public:
  /// Chooses the GPU by local order and makes it current. Throws Error{device} with the reason if there is none.
  explicit Device(const engine::BackendOptions& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  bool has_bf16() const { return properties_.major >= 8; }
  /// "0000:1b:00.0"
  std::string pci_id() const;
  /// The same as a number, exact in a double; pci_text turns it back.
  std::uint64_t pci_number() const;
  /// Equal for two processes on one host that use the same GPU (or part of one), exact in a double.
  std::uint64_t identity() const;
  /// "NVIDIA H200 (GPU 0, 0000:1b:00.0), compute capability 9.0, …, 1234 of 143771 MiB in use"
  std::string text() const;

  /// The stream of a lane, created at the first call. The comm lane has priority over compute, and compute over side
  /// lanes.
  cudaStream_t stream(engine::LaneId lane);
  /// The streams of all lanes.
  std::size_t lanes() const { return streams_.size(); }

  /// Zeroed, 256-byte aligned. Throws Error{device} with the sizes when there is not enough.
  Buffer allocate(std::size_t bytes) const;
  /// Between any two places, host or device; returns when done. Does not wait for the lanes.
  void copy(void* dst, const void* src, std::size_t bytes);

  cublasLtHandle_t blas();
  DnnHandles& dnn() { return dnn_; }
  HostLink& link() { return link_; }

 private:
  int ordinal_ = 0;
  cudaDeviceProp properties_{};
  std::vector<Stream> streams_;  ///< by lane
  Stream copies_;
  Owned<cublasLtHandle_t> blas_;
  DnnHandles dnn_;
  HostLink link_;
};

/// "0000:1b:00.0"
std::string pci_text(std::uint64_t number);

/// "CUDA 13.0, cuDNN 9.19.0, cuBLASLt 13.1.0, NCCL 2.28.9": the loaded versions, which may differ from those of the
/// build.
std::string library_versions();

/// Memory for trying kernels; see Trial. The trial points into it.
class TrialMemory {
 public:
  /// `bytes`: the size of each operand.
  TrialMemory(Device& device, std::size_t bytes);
  TrialMemory(const TrialMemory&) = delete;
  TrialMemory& operator=(const TrialMemory&) = delete;
  const Trial& trial() const { return trial_; }

 private:
  void* workspace(std::size_t bytes);

  Device& device_;
  Buffer operand_, result_, nans_, workspace_;
  Trial trial_;
};

/// Logs the GPU of each rank, and warns of GPUs that no rank uses. Throws Error{device} on all ranks if two share a GPU
/// without permission. Collective.
void compare_devices(const Device& device, const comm::World& world, bool share);

}  // namespace cifar_mpi::cuda
