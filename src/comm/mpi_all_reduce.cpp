#include <mpi.h>

#include <cassert>
#include <climits>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handle.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

/// One planned all-reduce of the MPI library.
class MpiRun {
 public:
  MpiRun(MPI_Comm comm, std::span<float> data) : comm_(comm), data_(data) {
    if (data.size() > INT_MAX) {
      throw Error(ErrorKind::usage, concat("a bucket of ", data.size(),
                                           " floats is too long for one MPI call; use smaller buckets"));
    }
  }

  void start() {
    if (data_.empty()) return;
    assert(*request_.address() == MPI_REQUEST_NULL && "an all-reduce was started before it had ended");
    check(MPI_Iallreduce(MPI_IN_PLACE, data_.data(), static_cast<int>(data_.size()), MPI_FLOAT, MPI_SUM,
                         comm_, request_.address()),
          "starting an all-reduce");
  }

  bool poll() {
    int done = 0;
    check(MPI_Test(request_.address(), &done, MPI_STATUS_IGNORE), "waiting for an all-reduce");
    return done != 0;
  }

 private:
  MPI_Comm comm_;
  std::span<float> data_;
  Request request_;
};

class MpiAllReduce final : public Collective {
 public:
  explicit MpiAllReduce(const World& world) : world_(world), comm_(WorldAccess::duplicate(world)) {}

  std::string_view name() const override { return "mpi"; }
  int ranks() const override { return world_.size(); }
  Buffer allocate(std::size_t bytes) override { return allocate_together(world_, bytes); }
  engine::Task all_reduce(std::string task_name, std::span<float> data) override {
    MpiRun* const run = runs_.emplace_back(std::make_unique<MpiRun>(comm_.get(), data)).get();
    return {std::move(task_name),
            {engine::bytes_of(data.data(), data.size())},
            {engine::bytes_of(data.data(), data.size())},
            [run](engine::Lane&) { run->start(); },
            [run] { return run->poll(); }};
  }

 private:
  const World& world_;
  Communicator comm_;
  std::vector<std::unique_ptr<MpiRun>> runs_;  ///< tasks point into it; goes before the communicator
};

}  // namespace

std::unique_ptr<Collective> make_mpi_all_reduce(const World& world, const Nodes&) {
  return std::make_unique<MpiAllReduce>(world);
}

}  // namespace cifar_mpi::comm
