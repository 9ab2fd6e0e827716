#pragma once

#include <cstddef>

#include "cifar_mpi/base/buffer.hpp"

namespace cifar_mpi::comm {

/// `allocate_host` for buffers of MPI messages. It is not released while an exception unwinds, because MPI
/// may still write a pending message into it.
Buffer allocate_message_memory(std::size_t bytes);

}  // namespace cifar_mpi::comm
