#pragma once

#include <string>
#include <thread>

namespace cifar_mpi::comm {

/// Exits the process at once if its scope takes too long: for MPI calls that may wait for lost ranks, such as
/// MPI_Finalize and MPI_Abort.
class ExitTimer {
 public:
  /// After `seconds` writes `text` and a newline to stderr and calls _exit with `code`, without MPI and without
  /// destructors, unless this object has been destroyed. Time in which this process is stopped does not count.
  ExitTimer(double seconds, int code, std::string text);

 private:
  std::jthread thread_;
};

}  // namespace cifar_mpi::comm
