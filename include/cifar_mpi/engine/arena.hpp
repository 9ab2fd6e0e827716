#pragma once

#include <functional>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Memory for activations and scratch of the programs of one run.
///
/// Programs never run at the same time, so a second program may reuse the memory of the first: after
/// `rewind`, `take` returns existing chunks, best fit first, before it allocates more. All memory is freed
/// with the arena.
class Arena {
 public:
  using Allocate = std::function<Buffer(std::size_t)>;
  explicit Arena(Allocate allocate) : allocate_(std::move(allocate)) {}

  /// 64-byte aligned memory of at least `size` bytes, valid as long as the arena. Its content is unspecified.
  std::byte* take(std::size_t size);
  template <class T>
  T* take_array(std::size_t count) {
    return reinterpret_cast<T*>(take(count * sizeof(T)));
  }
  /// Makes all chunks available again, for the next program.
  void rewind();

  std::vector<Bytes> regions() const;

 private:
  struct Chunk {
    Buffer buffer;
    bool taken = true;
  };
  Allocate allocate_;
  std::vector<Chunk> chunks_;
};

}  // namespace cifar_mpi::engine
