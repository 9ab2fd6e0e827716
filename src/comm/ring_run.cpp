#include "comm/ring_run.hpp"

#include <cassert>
#include <climits>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "comm/add.hpp"
#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {

Place ring_place(MPI_Comm comm) {
  Place place{comm};
  check(MPI_Comm_rank(comm, &place.rank), "asking for the place in a ring");
  check(MPI_Comm_size(comm, &place.ranks), "asking for the length of a ring");
  return place;
}

RingRun::RingRun(const Place& place, std::span<float> data)
    : place_(place), data_(data), steps_(data.empty() ? 0 : 2 * (place.ranks - 1)) {
  constexpr int kTag = 1;
  const std::size_t ranks = static_cast<std::size_t>(place_.ranks);
  longest_ = (data.size() + ranks - 1) / ranks;
  if (longest_ > INT_MAX) {
    throw Error(ErrorKind::usage,
                concat("a bucket of ", data.size(), " floats is too long for one MPI message per rank; ",
                       "use smaller buckets"));
  }
  if (steps_ == 0) return;
  scratch_ = allocate_host(2 * longest_ * sizeof(float));
  sends_.resize(static_cast<std::size_t>(steps_));
  receives_.resize(static_cast<std::size_t>(steps_));
  for (int k = 0; k < steps_; ++k) {
    const std::span<float> out = piece(k);
    const std::span<float> in = landing(k);
    check(MPI_Send_init(out.data(), static_cast<int>(out.size()), MPI_FLOAT, place_.right(), kTag,
                        place_.comm, sends_[static_cast<std::size_t>(k)].address()),
          "planning a message of the ring", place_.right());
    check(MPI_Recv_init(in.data(), static_cast<int>(in.size()), MPI_FLOAT, place_.left(), kTag, place_.comm,
                        receives_[static_cast<std::size_t>(k)].address()),
          "planning a message of the ring", place_.left());
  }
}

/// The piece that step k sends.
std::span<float> RingRun::piece(int step) const {
  const std::size_t ranks = static_cast<std::size_t>(place_.ranks);
  const std::size_t index = static_cast<std::size_t>((place_.rank - step + 2 * place_.ranks) % place_.ranks);
  const std::size_t begin = index * data_.size() / ranks;
  const std::size_t end = (index + 1) * data_.size() / ranks;
  return data_.subspan(begin, end - begin);
}

/// Where step k receives: beside the array while it must be added, in place afterwards. What it receives is
/// the next to be sent.
std::span<float> RingRun::landing(int step) const {
  const std::span<float> place = piece(step + 1);
  if (step >= place_.ranks - 1) return place;
  return {scratch_.as<float>() + static_cast<std::size_t>(step % 2) * longest_, place.size()};
}

void RingRun::start() {
  assert(arrived_ == awaited_ && sent_ == sending_ && "an all-reduce was started before it had ended");
  sent_ = sending_ = awaited_ = arrived_ = 0;
  while (await_next()) {
  }
  if (steps_ > 0) {
    check(MPI_Start(sends_.front().address()), "sending around the ring", place_.right());
    sending_ = 1;
  }
}

/// Receives are posted one step ahead, so that a message finds its place when it comes. The place is free
/// when the arrival two steps ago was added (scratch), or when the send of the partial sum that lay there is
/// done (array): the total cannot come before that partial sum has left, but MPI allows no receive into what
/// it is still sending.
bool RingRun::may_await(int step) const {
  if (step >= steps_ || step > arrived_ + 1) return false;
  const int same_piece_sent = step - (place_.ranks - 1);
  return same_piece_sent < 0 || sent_ > same_piece_sent;
}

bool RingRun::await_next() {
  if (!may_await(awaited_)) return false;
  check(MPI_Start(receives_[static_cast<std::size_t>(awaited_)].address()), "receiving around the ring",
        place_.left());
  ++awaited_;
  return true;
}

bool RingRun::finish_oldest_send() {
  if (sent_ == sending_) return false;
  int done = 0;
  check(MPI_Test(sends_[static_cast<std::size_t>(sent_)].address(), &done, MPI_STATUS_IGNORE),
        "sending around the ring", place_.right());
  sent_ += done;
  return done != 0;
}

bool RingRun::take_oldest_arrival() {
  if (arrived_ == awaited_) return false;
  int done = 0;
  check(MPI_Test(receives_[static_cast<std::size_t>(arrived_)].address(), &done, MPI_STATUS_IGNORE),
        "receiving around the ring", place_.left());
  if (done == 0) return false;
  const int step = arrived_++;
  if (step < place_.ranks - 1) {
    const std::span<float> sum = piece(step + 1);
    add(sum.data(), landing(step).data(), sum.size());
  }
  if (arrived_ < steps_) {
    check(MPI_Start(sends_[static_cast<std::size_t>(arrived_)].address()), "sending around the ring",
          place_.right());
    ++sending_;
  }
  return true;
}

bool RingRun::poll() {
  bool moved = true;
  while (moved) {
    moved = finish_oldest_send();
    moved = await_next() || moved;
    moved = take_oldest_arrival() || moved;
  }
  return arrived_ == steps_ && sent_ == steps_;
}

}  // namespace cifar_mpi::comm
