#include <mpi.h>

#include <bit>
#include <cassert>
#include <cstddef>
#include <utility>
#include <vector>

#include "comm/message_collective.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handle.hpp"

namespace cifar_mpi::comm {
namespace {

using Stage = DoublingStage;

unsigned parts_of(int ranks) { return std::bit_floor(static_cast<unsigned>(ranks)); }

/// Ranks 2i and 2i + 1 for i below this act as one part.
int pairs_of(int ranks) { return ranks - static_cast<int>(parts_of(ranks)); }

/// The stages of `rank`; see make_doubling.
std::vector<Stage> stages_of(int rank, int ranks) {
  std::vector<Stage> stages;
  for (int round = 0; round < doubling_rounds(ranks); ++round)
    if (const auto stage = doubling_stage(rank, ranks, round)) stages.push_back(*stage);
  return stages;
}

/// One planned all-reduce: its stages in order. A stage ends when its message is sent and the other received;
/// only then is the received message added to the sent one.
///
/// Two neighbours in some stage may be a stage, or a whole all-reduce, apart: their messages are sent and
/// awaited in one order on one communicator, and MPI never lets one overtake another.
///
/// With a 16-bit wire a rank rounds its own partial sum as well before it sends it, so that both ends of an
/// exchange add the same two numbers. If a total is forwarded to the odd rank of a pair, and so rounded
/// again, all ranks round it.
class DoublingOperation {
 public:
  DoublingOperation(const Neighbours& neighbours, StagingBuffer image)
      : neighbours_(neighbours), image_(std::move(image)) {
    if (image_.data().empty()) return;
    stages_ = stages_of(neighbours.rank, neighbours.ranks);
    pairs_ = pairs_of(neighbours.ranks);
    stage_ = stages_.size();
    if (stages_.empty()) return;
    scratch_ = allocate_message_memory(image_.bytes(all()));
    for (const Stage& stage : stages_) plan(stage);
  }

  void start() {
    assert(stage_ == stages_.size() && "an all-reduce was started before it had ended");
    stage_ = 0;
    begin_stage();
  }

  bool poll() {
    using Arrival = Stage::Arrival;
    while (stage_ < stages_.size()) {
      if (!test(sends_[stage_]) || !test(receives_[stage_])) return false;
      const Stage& stage = stages_[stage_];
      if (stage.arrival == Arrival::added) image_.add(all(), scratch_.data());
      if (stage.arrival == Arrival::replaces) image_.accept(all());
      ++stage_;
      const bool unpaired_end = stage_ == stages_.size() && stage.arrival == Arrival::added;
      if (unpaired_end && pairs_ > 0) image_.round(all());
      begin_stage();
    }
    return true;
  }

 private:
  Range all() const { return {0, image_.data().size()}; }

  void plan(const Stage& stage) {
    constexpr int kTag = 1;
    Request& send = sends_.emplace_back();
    Request& receive = receives_.emplace_back();
    if (stage.sends) {
      check(MPI_Send_init(image_.at(all()), image_.count(all()), image_.type(), stage.peer, kTag,
                          neighbours_.comm, send.address()),
            "planning a message of recursive doubling", stage.peer);
    }
    if (stage.arrival == Stage::Arrival::none) return;
    std::byte* const receive_buffer =
        stage.arrival == Stage::Arrival::added ? scratch_.data() : image_.at(all());
    check(MPI_Recv_init(receive_buffer, image_.count(all()), image_.type(), stage.peer, kTag,
                        neighbours_.comm, receive.address()),
          "planning a message of recursive doubling", stage.peer);
  }

  void begin_stage() {
    if (stage_ == stages_.size()) return;
    if (stages_[stage_].sends) image_.round(all());
    for (Request* request : {&receives_[stage_], &sends_[stage_]}) {
      if (*request->address() == MPI_REQUEST_NULL) continue;
      check(MPI_Start(request->address()), "starting a stage of recursive doubling", stages_[stage_].peer);
    }
  }

  /// True if there is no request or it has completed; may be called repeatedly.
  bool test(Request& request) {
    int done = 0;
    check(MPI_Test(request.address(), &done, MPI_STATUS_IGNORE), "exchanging partial sums",
          stages_[stage_].peer);
    return done != 0;
  }

  Neighbours neighbours_;
  StagingBuffer image_;
  std::vector<Stage> stages_;
  int pairs_ = 0;
  std::size_t stage_ = 0;  ///< the current one; past the end if there is none
  Buffer scratch_;
  std::vector<Request> sends_;     ///< by stage
  std::vector<Request> receives_;  ///< by stage
};

}  // namespace

int doubling_rounds(int ranks) { return std::countr_zero(parts_of(ranks)) + 2; }

std::optional<DoublingStage> doubling_stage(int rank, int ranks, int round) {
  using Arrival = Stage::Arrival;
  const int pairs = pairs_of(ranks);
  const bool paired = rank < 2 * pairs, odd = rank % 2 == 1;
  const bool first = round == 0;
  if (first || round == doubling_rounds(ranks) - 1) {
    if (!paired) return std::nullopt;
    if (first == odd) return Stage{rank ^ 1, true, Arrival::none};
    return Stage{rank ^ 1, false, first ? Arrival::added : Arrival::replaces};
  }
  if (paired && odd) return std::nullopt;
  const int other = (paired ? rank / 2 : rank - pairs) ^ (1 << (round - 1));
  return Stage{other < pairs ? 2 * other : other + pairs, true, Arrival::added};
}

/// Recursive doubling: in stage s the rank exchanges its whole partial sum with the one 2^s away, so that
/// after log2(P) stages all have the total (Thakur, Rabenseifner, Gropp 2005). Few messages, but all of the
/// array in each: for short arrays.
///
/// The sum is a fixed binary tree over rank order. For P a power of two it is the balanced one, ((r0+r1)+(r2+r3))+…;
/// otherwise, with K the largest power of two below P, the first P-K pairs of ranks (2i, 2i+1) are added first and the
/// balanced tree covers those pairs and the remaining ranks: for P = 5 ((r0+r1)+r2)+(r3+r4). The pairs add two stages.
///
///   data   [n] f32, host memory, replaced by the sum; any n, also n = 0
///   order  belongs on the comm lane; `start` posts the first stage, `poll` adds and starts the next
///   bits   depend on P alone, neither on n nor on timing: both ends of an exchange add the same two numbers
///   memory a receive buffer of the array's size, allocated when the task is made; nothing per run
std::unique_ptr<Collective> make_doubling(const World& world, const Nodes& nodes, Wire wire) {
  return std::make_unique<MessageCollective<DoublingOperation>>("doubling", world, nodes, wire);
}

}  // namespace cifar_mpi::comm
