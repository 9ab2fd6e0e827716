#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace cifar_mpi::comm {

/// Ends the process hard when what stands in its scope takes too long: for calls of MPI that wait for ranks
/// that may be gone, such as MPI_Finalize and MPI_Abort.
class ExitTimer {
 public:
  /// After `seconds` writes `text` and a newline to stderr and leaves by _exit with `code`, without MPI and
  /// without destructors; not if this object is gone by then. Time in which this process is stopped does not
  /// count.
  ExitTimer(double seconds, int code, std::string text);
  ~ExitTimer();
  ExitTimer(const ExitTimer&) = delete;
  ExitTimer& operator=(const ExitTimer&) = delete;

 private:
  void wait(double seconds, int code, const std::string& text);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace cifar_mpi::comm
