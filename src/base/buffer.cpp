#include "cifar_mpi/base/buffer.hpp"

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
  if (memory == nullptr)
    throw Error(ErrorKind::device, concat("out of host memory asking for ", size >> 20, " MiB"));
  std::memset(memory, 0, rounded);
  return {static_cast<std::byte*>(memory), size, [memory] { std::free(memory); }};
}

}  // namespace cifar_mpi
