#pragma once

#include <mpi.h>

#include <exception>
#include <utility>

/// Owners of MPI objects. `Handle` does not fit, because the null values of MPI are not constant expressions.
namespace cifar_mpi::comm {

/// Owns one communicator; moves and never copies. Freeing it is collective: all ranks destroy it at the same place.
class Communicator {
 public:
  Communicator() = default;
  explicit Communicator(MPI_Comm value) : value_(value) {}
  Communicator(Communicator&& other) noexcept : value_(std::exchange(other.value_, MPI_COMM_NULL)) {}
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /// While an exception unwinds, only this rank may be here, and it would wait for the others: then freeing
  /// is left to MPI_Finalize or MPI_Abort.
  ~Communicator() {
    if (value_ != MPI_COMM_NULL && std::uncaught_exceptions() == 0) MPI_Comm_free(&value_);
  }

  MPI_Comm get() const { return value_; }

 private:
  MPI_Comm value_ = MPI_COMM_NULL;
};

/// Owns one request; moves and never copies. An active one may be freed; its buffer must then stay until finalize.
class Request {
 public:
  Request() = default;
  Request(Request&& other) noexcept : value_(std::exchange(other.value_, MPI_REQUEST_NULL)) {}
  Request& operator=(Request&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() {
    if (value_ != MPI_REQUEST_NULL) MPI_Request_free(&value_);
  }

  /// For the MPI calls that fill or advance it.
  MPI_Request* address() { return &value_; }

 private:
  MPI_Request value_ = MPI_REQUEST_NULL;
};

}  // namespace cifar_mpi::comm
