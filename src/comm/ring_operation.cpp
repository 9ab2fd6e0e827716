#include "comm/ring_operation.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "comm/collectives.hpp"
#include "comm/message_collective.hpp"
#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {
namespace {

/// Chunks are of this size or up to twice as long.
///
/// Inside a node 256 KiB: two ranks, 4.27 MB, against MPI_Allreduce in the same rounds: whole pieces 0.95
/// (where one rank may read the other's memory) and 1.14 (where it may not), 512 KiB 0.96 and 0.97, 256 KiB
/// 0.98 and 0.94, 128 KiB 1.00 and 0.98, 64 KiB 1.10 and 1.08.
///
/// Between nodes 2 MiB: the clear-to-send of a long message queues after the chunks in the other direction,
/// so with small chunks the link goes idle. Two nodes over TCP, 4.27 and 16.8 MB: 256 KiB 1.28 and 1.38 on
/// links held to 10 Gbit/s, 1.38 and 1.52 on free ones; 2 MiB 1.00 and 1.23, 1.00 and 1.05. Four nodes, whose
/// pieces are shorter: 256 KiB 0.66, 2 MiB 0.73.
constexpr std::size_t kNodeChunkFloats = 64 << 10;
constexpr std::size_t kNetworkChunkFloats = 512 << 10;
/// Per piece, to bound the number of requests.
constexpr std::size_t kMostChunks = 256;
/// The number of receives posted ahead, so that each message has a receive when it arrives.
constexpr std::size_t kAhead = 3;

}  // namespace

std::size_t ring_chunks(std::size_t piece_floats, bool network) {
  return std::clamp<std::size_t>(piece_floats / (network ? kNetworkChunkFloats : kNodeChunkFloats), 1,
                                 kMostChunks);
}

RingOperation::RingOperation(const Neighbours& neighbours, StagingBuffer image)
    : neighbours_(neighbours), image_(std::move(image)) {
  constexpr int kTag = 1;
  if (neighbours_.ranks == 1 || image_.data().empty()) return;
  const std::size_t hops = static_cast<std::size_t>(neighbours_.ranks) - 1;
  chunks_ =
      ring_chunks(image_.data().size() / static_cast<std::size_t>(neighbours_.ranks), neighbours_.network);
  adding_ = hops * chunks_;
  sends_.resize(2 * adding_);
  receives_.resize(2 * adding_);
  for (std::size_t m = 0; m < adding_; ++m)
    slot_bytes_ = std::max(slot_bytes_, (image_.bytes(received_by(m)) + 63) / 64 * 64);
  scratch_ = allocate_message_memory(kAhead * slot_bytes_);
  for (std::size_t m = 0; m < sends_.size(); ++m) {
    check(MPI_Send_init(image_.at(sent_by(m)), image_.count(sent_by(m)), image_.type(), neighbours_.right(),
                        kTag, neighbours_.comm, sends_[m].address()),
          "planning a message of the ring", neighbours_.right());
    check(MPI_Recv_init(receive_buffer(m), image_.count(received_by(m)), image_.type(), neighbours_.left(),
                        kTag, neighbours_.comm, receives_[m].address()),
          "planning a message of the ring", neighbours_.left());
  }
}

/// The index of the piece that a step sends.
std::size_t RingOperation::index(std::size_t step) const {
  const std::size_t ranks = static_cast<std::size_t>(neighbours_.ranks);
  return (static_cast<std::size_t>(neighbours_.rank) + 2 * ranks - step) % ranks;
}

/// The range that a step sends in one chunk.
Range RingOperation::range(std::size_t step, std::size_t chunk) const {
  const std::size_t ranks = static_cast<std::size_t>(neighbours_.ranks);
  const std::size_t floats = image_.data().size();
  const std::size_t begin = index(step) * floats / ranks;
  const std::size_t size = (index(step) + 1) * floats / ranks - begin;
  return {begin + chunk * size / chunks_, begin + (chunk + 1) * size / chunks_};
}

/// The destination of a message: a receive buffer while messages are added, later the array itself, from
/// which the next step sends it.
std::byte* RingOperation::receive_buffer(std::size_t message) const {
  if (message >= adding_) return image_.at(received_by(message));
  return scratch_.data() + message % kAhead * slot_bytes_;
}

void RingOperation::start() {
  assert(arrived_ == awaited_ && sent_ == sending_ && "an all-reduce was started before it had ended");
  sent_ = sending_ = awaited_ = arrived_ = 0;
  if (sends_.empty()) return;
  while (await_next()) {
  }
  for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
    image_.round(sent_by(chunk));
    send(chunk);
  }
}

/// A slot is free once its previous message has been added; a place in the array, once the send of its
/// partial sum has completed. The total cannot arrive before that partial sum has been sent, but MPI forbids
/// receiving into a buffer that is being sent.
bool RingOperation::may_await(std::size_t message) const {
  if (message >= receives_.size() || message >= arrived_ + kAhead) return false;
  return message < adding_ || sent_ > message - adding_;
}

bool RingOperation::await_next() {
  if (!may_await(awaited_)) return false;
  check(MPI_Start(receives_[awaited_].address()), "receiving around the ring", neighbours_.left());
  ++awaited_;
  return true;
}

void RingOperation::send(std::size_t message) {
  check(MPI_Start(sends_[message].address()), "sending around the ring", neighbours_.right());
  ++sending_;
}

bool RingOperation::finish_oldest_send() {
  if (sent_ == sending_) return false;
  int done = 0;
  check(MPI_Test(sends_[sent_].address(), &done, MPI_STATUS_IGNORE), "sending around the ring",
        neighbours_.right());
  if (done != 0) ++sent_;
  return done != 0;
}

bool RingOperation::take_oldest_arrival() {
  if (arrived_ == awaited_) return false;
  int done = 0;
  check(MPI_Test(receives_[arrived_].address(), &done, MPI_STATUS_IGNORE), "receiving around the ring",
        neighbours_.left());
  if (done == 0) return false;
  const std::size_t message = arrived_++;
  if (message < adding_) {
    image_.add_and_round(received_by(message), receive_buffer(message));
  } else {
    image_.accept(received_by(message));
  }
  if (message + chunks_ < sends_.size()) send(message + chunks_);
  return true;
}

bool RingOperation::poll() {
  bool moved = true;
  while (moved) {
    moved = finish_oldest_send();
    moved = await_next() || moved;
    moved = take_oldest_arrival() || moved;
  }
  return arrived_ == receives_.size() && sent_ == sends_.size();
}

/// Two trips around a ring of P ranks: first a reduce-scatter, after which each rank has the sum of one chunk, then an
/// all-gather. A rank sends 2·(P-1)/P of the array in 2·(P-1) messages (Patarasuk and Yuan 2009). For short arrays the
/// number of messages dominates and `doubling` wins. Long pieces are sent in chunks: see `RingOperation`.
///
///   data   [n] f32, host memory, replaced by the sum; any n, also n < P and n = 0
///   order  belongs on the comm lane; `start` posts the first messages, `poll` adds what has arrived and
///          sends it on
///   bits   depend on P and n alone, not on timing: every total is computed once and copied
///   memory three chunks as receive buffers (and with a 16-bit wire half the array for sending), allocated
///          when the task is made; nothing per run
std::unique_ptr<Collective> make_ring(const World& world, const Nodes& nodes, Wire wire) {
  return std::make_unique<MessageCollective<RingOperation>>("ring", world, nodes, wire);
}

}  // namespace cifar_mpi::comm
