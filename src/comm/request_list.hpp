#pragma once

#include <mpi.h>

#include <functional>
#include <vector>

/// Persistent requests that are started and polled together.
namespace cifar_mpi::comm {

/// Owns persistent requests. All of them are made before the first is started.
class RequestList {
 public:
  RequestList() = default;
  RequestList(RequestList&&) noexcept = default;
  RequestList(const RequestList&) = delete;
  RequestList& operator=(const RequestList&) = delete;
  /// An active one may be freed; its buffer must then stay until MPI ends.
  ~RequestList();

  /// For the MPI call that creates the next request.
  MPI_Request* add();
  void start_all(const char* purpose);
  void start(int i, const char* purpose);
  /// True once all that were started are done. `purpose` as for `check`.
  bool all_done(const char* purpose);
  /// Calls `done(i)` for each request that has completed since the last call.
  void each_done(const char* purpose, const std::function<void(int)>& done);

 private:
  std::vector<MPI_Request> values_;
  std::vector<int> ended_;  ///< output buffer of MPI_Testsome
};

}  // namespace cifar_mpi::comm
