#include <mpi.h>

#include <cassert>
#include <utility>

#include "comm/message_collective.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handle.hpp"

namespace cifar_mpi::comm {
namespace {

/// One planned all-reduce of the MPI library.
class MpiOperation {
 public:
  MpiOperation(const Neighbours& neighbours, StagingBuffer image)
      : comm_(neighbours.comm), image_(std::move(image)), count_(image_.count({0, image_.data().size()})) {}

  void start() {
    if (count_ == 0) return;
    assert(*request_.address() == MPI_REQUEST_NULL && "an all-reduce was started before it had ended");
    check(MPI_Iallreduce(MPI_IN_PLACE, image_.data().data(), count_, MPI_FLOAT, MPI_SUM, comm_,
                         request_.address()),
          "starting an all-reduce");
  }

  bool poll() {
    int done = 0;
    check(MPI_Test(request_.address(), &done, MPI_STATUS_IGNORE), "waiting for an all-reduce");
    return done != 0;
  }

 private:
  MPI_Comm comm_;
  StagingBuffer image_;
  int count_;
  Request request_;
};

}  // namespace

/// MPI_Iallreduce in place and MPI_Test: the MPI library chooses the algorithm by length and number of ranks.
///
///   data   [n] f32, host memory, replaced by the sum; any n, also n = 0
///   order  belongs on the comm lane; `start` returns at once, progress is made in `poll`
///   bits   MPI only advises that all ranks get the same; the algorithms of Open MPI 4 and 5 give it, because
///          either one rank adds and the others copy, or two ranks add the same two values
///   memory the MPI library may allocate its own per run
std::unique_ptr<Collective> make_mpi_all_reduce(const World& world, const Nodes& nodes, Wire) {
  return std::make_unique<MessageCollective<MpiOperation>>("mpi", world, nodes, Wire::fp32);
}

}  // namespace cifar_mpi::comm
