#include "comm/message_memory.hpp"

#include <exception>

namespace cifar_mpi::comm {

Buffer allocate_message_memory(std::size_t bytes) {
  auto* const memory = new Buffer(allocate_host(bytes));
  return {memory->data(), bytes, [memory] {
            if (std::uncaught_exceptions() == 0) delete memory;
          }};
}

}  // namespace cifar_mpi::comm
