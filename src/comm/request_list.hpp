#pragma once

#include <mpi.h>

#include <exception>
#include <functional>
#include <vector>

/// Several messages that are started and watched together.
namespace cifar_mpi::comm {

/// Owns persistent requests. All of them are made before the first is started.
class RequestList {
 public:
  RequestList() = default;
  RequestList(RequestList&&) noexcept = default;
  RequestList(const RequestList&) = delete;
  RequestList& operator=(const RequestList&) = delete;
  /// Freeing an active one is allowed, its buffer must then stay until MPI ends.
  ~RequestList();

  /// For the MPI call that makes the next.
  MPI_Request* add();
  void start_all(const char* purpose);
  void start(int i, const char* purpose);
  /// True once all that were started are done. `purpose` as for `check`.
  bool all_done(const char* purpose);
  /// Calls `done(i)` for each that has ended since it was started or last asked for.
  void each_done(const char* purpose, const std::function<void(int)>& done);

 private:
  std::vector<MPI_Request> values_;
  std::vector<int> ended_;  ///< room for what MPI answers
};

}  // namespace cifar_mpi::comm
