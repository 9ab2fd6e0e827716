#pragma once

#include <cstddef>

#include "cifar_mpi/base/buffer.hpp"

namespace cifar_mpi::comm {

/// `allocate_host` for what MPI receives into or sends from. It is not given back while an exception unwinds:
/// a message that is still under way may then be written into it until MPI ends.
Buffer allocate_message_memory(std::size_t bytes);

}  // namespace cifar_mpi::comm
