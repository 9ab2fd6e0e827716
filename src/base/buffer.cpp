#include "cifar_mpi/base/buffer.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi {

Buffer allocate_host(std::size_t size) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded == 0) return {};
  void* const memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw Error(ErrorKind::device, "out of host memory asking for ", size >> 20, " MiB");
  std::memset(memory, 0, rounded);
  return {static_cast<std::byte*>(memory), size, [memory] { std::free(memory); }};
}

Buffer allocate_on_huge_pages(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (bytes < kHugePage) return allocate_host(bytes);
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const memory = std::aligned_alloc(kHugePage, rounded);
  if (memory == nullptr) {
    throw Error(ErrorKind::device, "out of host memory asking for ", bytes >> 20,
                " MiB; use a smaller --batch-size or fewer ranks per node");
  }
  // A failure only costs speed.
  static_cast<void>(madvise(memory, rounded, MADV_HUGEPAGE));
  std::memset(memory, 0, rounded);
  return {static_cast<std::byte*>(memory), bytes, [memory] { std::free(memory); }};
}

}  // namespace cifar_mpi
