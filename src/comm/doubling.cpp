#include <mpi.h>

#include <bit>
#include <cassert>
#include <climits>
#include <cstddef>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "comm/add.hpp"
#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handle.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

/// One message each way, or only one way, and what becomes of the arrival.
struct Stage {
  enum class Arrival { none, added, replaces };

  int peer = 0;
  bool sends = false;
  Arrival arrival = Arrival::none;
};

/// What `rank` does, stage by stage; see make_doubling.
std::vector<Stage> stages_of(int rank, int ranks) {
  using Arrival = Stage::Arrival;
  const int parts = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
  const int pairs = ranks - parts;  // ranks 2i and 2i + 1, i < pairs, act as one part
  const bool paired = rank < 2 * pairs;
  if (paired && rank % 2 == 1) return {{rank - 1, true, Arrival::none}, {rank - 1, false, Arrival::replaces}};

  std::vector<Stage> stages;
  if (paired) stages.push_back({rank + 1, false, Arrival::added});
  const int part = paired ? rank / 2 : rank - pairs;
  for (int distance = 1; distance < parts; distance *= 2) {
    const int other = part ^ distance;
    stages.push_back({other < pairs ? 2 * other : other + pairs, true, Arrival::added});
  }
  if (paired) stages.push_back({rank + 1, true, Arrival::none});
  return stages;
}

/// One planned all-reduce: its stages one after the other. A stage ends when its message has left and the
/// other has arrived; only then is the arrival added to what was sent.
///
/// Two neighbours in some stage may be a stage, or a whole all-reduce, apart: their messages are sent and
/// awaited in one order on one communicator, and MPI never lets one overtake another.
class DoublingRun {
 public:
  DoublingRun(MPI_Comm comm, std::span<const Stage> stages, std::span<float> data)
      : stages_(data.empty() ? stages.first(0) : stages), data_(data), stage_(stages_.size()) {
    if (data.size() > INT_MAX) {
      throw Error(ErrorKind::usage, concat("a bucket of ", data.size(),
                                           " floats is too long for one MPI message; use smaller buckets"));
    }
    if (stages_.empty()) return;
    scratch_ = allocate_host(data.size_bytes());
    for (const Stage& stage : stages_) plan(comm, stage);
  }

  void start() {
    assert(stage_ == stages_.size() && "an all-reduce was started before it had ended");
    stage_ = 0;
    begin_stage();
  }

  bool poll() {
    while (stage_ < stages_.size()) {
      if (!test(sends_[stage_]) || !test(receives_[stage_])) return false;
      if (stages_[stage_].arrival == Stage::Arrival::added) {
        add(data_.data(), scratch_.as<float>(), data_.size());
      }
      ++stage_;
      begin_stage();
    }
    return true;
  }

 private:
  void plan(MPI_Comm comm, const Stage& stage) {
    constexpr int kTag = 1;
    const int count = static_cast<int>(data_.size());
    Request& send = sends_.emplace_back();
    Request& receive = receives_.emplace_back();
    if (stage.sends) {
      check(MPI_Send_init(data_.data(), count, MPI_FLOAT, stage.peer, kTag, comm, send.address()),
            "planning a message of recursive doubling", stage.peer);
    }
    if (stage.arrival == Stage::Arrival::none) return;
    float* const landing = stage.arrival == Stage::Arrival::added ? scratch_.as<float>() : data_.data();
    check(MPI_Recv_init(landing, count, MPI_FLOAT, stage.peer, kTag, comm, receive.address()),
          "planning a message of recursive doubling", stage.peer);
  }

  void begin_stage() {
    if (stage_ == stages_.size()) return;
    for (Request* request : {&receives_[stage_], &sends_[stage_]}) {
      if (*request->address() == MPI_REQUEST_NULL) continue;
      check(MPI_Start(request->address()), "starting a stage of recursive doubling", stages_[stage_].peer);
    }
  }

  /// True for no request and for one that has ended, however often it is asked.
  bool test(Request& request) {
    int done = 0;
    check(MPI_Test(request.address(), &done, MPI_STATUS_IGNORE), "exchanging partial sums",
          stages_[stage_].peer);
    return done != 0;
  }

  std::span<const Stage> stages_;
  std::span<float> data_;
  std::size_t stage_;  ///< the one under way; past the end when there is none
  Buffer scratch_;
  std::vector<Request> sends_;     ///< by stage
  std::vector<Request> receives_;  ///< by stage
};

class Doubling final : public Collective {
 public:
  explicit Doubling(const World& world)
      : world_(world), comm_(WorldAccess::duplicate(world)), stages_(stages_of(world.rank(), world.size())) {}

  std::string_view name() const override { return "doubling"; }
  int ranks() const override { return world_.size(); }
  Buffer allocate(std::size_t bytes) override { return allocate_together(world_, bytes); }
  engine::Task all_reduce(std::string task_name, std::span<float> data) override {
    DoublingRun* const run =
        runs_.emplace_back(std::make_unique<DoublingRun>(comm_.get(), stages_, data)).get();
    return {std::move(task_name),
            {engine::bytes_of(data.data(), data.size())},
            {engine::bytes_of(data.data(), data.size())},
            [run](engine::Lane&) { run->start(); },
            [run] { return run->poll(); }};
  }

 private:
  const World& world_;
  Communicator comm_;
  std::vector<Stage> stages_;
  std::vector<std::unique_ptr<DoublingRun>> runs_;  ///< tasks point into it; goes before the communicator
};

}  // namespace

std::unique_ptr<Collective> make_doubling(const World& world, const Nodes&) {
  return std::make_unique<Doubling>(world);
}

}  // namespace cifar_mpi::comm
