#pragma once

#include <mpi.h>

#include <cstddef>

#include "cifar_mpi/base/buffer.hpp"

namespace cifar_mpi::comm {

/// Means "no single peer" in `check`.
constexpr int kNoPeer = -1;

/// Throws the Error{comm} for a failed call: its purpose, the peer if any, MPI's description and the source line.
[[noreturn]] void fail(int status, const char* purpose, int peer, const char* file, int line);

/// Every MPI call goes through here; `purpose` completes "MPI failed while …", for example "sending to the
/// right".
inline void check(int status, const char* purpose, int peer = kNoPeer, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (status != MPI_SUCCESS) fail(status, purpose, peer, file, line);
}

/// `allocate_host` for buffers of MPI messages. It is not released while an exception unwinds, because MPI
/// may still write a pending message into it.
Buffer allocate_message_memory(std::size_t bytes);

}  // namespace cifar_mpi::comm
