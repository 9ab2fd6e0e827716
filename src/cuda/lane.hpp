#pragma once

#include <cuda_runtime_api.h>

#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::cuda {

/// A lane of this backend: tasks enqueue on its stream and return at once.
class StreamLane final : public engine::Lane {
 public:
  explicit StreamLane(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_;
};

/// Tasks of this backend only ever meet its own runners, hence its own lanes.
inline cudaStream_t stream_of(engine::Lane& lane) { return static_cast<StreamLane&>(lane).stream(); }

}  // namespace cifar_mpi::cuda
