#include <mpi.h>

#include <cassert>
#include <climits>
#include <cstddef>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handle.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

/// Where a rank stands in the ring.
struct Place {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int ranks = 1;

  int right() const { return (rank + 1) % ranks; }
  int left() const { return (rank + ranks - 1) % ranks; }
};

void add(float* __restrict dst, const float* __restrict src, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) dst[i] += src[i];
}

/// One planned all-reduce: all its messages as persistent requests, moved forward by `poll`.
///
/// Step k of 2·(P-1) sends piece (r - k) mod P to the right and receives piece (r - k - 1) mod P from the
/// left. In the first P-1 steps what arrives is added to the own piece, afterwards it replaces it; either way
/// it is what step k+1 sends. All messages between two neighbours, also of the next all-reduce, are sent and
/// awaited in one order on one communicator, and MPI never lets one overtake another, so that a neighbour may
/// be ahead without confusion.
class RingRun {
 public:
  RingRun(const Place& place, std::span<float> data);

  void start();
  bool poll();

 private:
  std::span<float> piece(int step) const;
  std::span<float> landing(int step) const;
  bool may_await(int step) const;
  bool finish_oldest_send();
  bool await_next();
  bool take_oldest_arrival();

  Place place_;
  std::span<float> data_;
  int steps_ = 0;
  Buffer scratch_;
  std::size_t longest_ = 0;  ///< floats of the longest piece, one slot of the scratch
  std::vector<Request> sends_;
  std::vector<Request> receives_;
  int sent_ = 0;     ///< sends that are done
  int sending_ = 0;  ///< sends that were started
  int awaited_ = 0;  ///< receives that were posted
  int arrived_ = 0;  ///< receives that are done and digested
};

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

class Ring final : public Collective {
 public:
  explicit Ring(const World& world)
      : comm_(WorldAccess::duplicate(world)), place_{comm_.get(), world.rank(), world.size()} {}

  std::string_view name() const override { return "ring"; }
  int ranks() const override { return place_.ranks; }
  Buffer allocate(std::size_t bytes) override { return allocate_host(bytes); }
  engine::Task all_reduce(std::string task_name, std::span<float> data) override {
    RingRun* const run = runs_.emplace_back(std::make_unique<RingRun>(place_, data)).get();
    return {std::move(task_name),
            {engine::bytes_of(data.data(), data.size())},
            {engine::bytes_of(data.data(), data.size())},
            [run](engine::Lane&) { run->start(); },
            [run] { return run->poll(); }};
  }

 private:
  Communicator comm_;
  Place place_;
  std::vector<std::unique_ptr<RingRun>> runs_;  ///< tasks point into it; goes before the communicator
};

}  // namespace

std::unique_ptr<Collective> make_ring(const World& world) { return std::make_unique<Ring>(world); }

}  // namespace cifar_mpi::comm
