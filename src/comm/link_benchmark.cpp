#include <mpi.h>

#include <algorithm>
#include <optional>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/comm/benchmark.hpp"
#include "comm/add.hpp"
#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

constexpr std::size_t kLengths[] = {4, 4 << 10, 32 << 10, 64 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20};

double slowest(double mine, const World& world) { return std::ranges::max(world.gather(mine)); }

/// Messages between the first ranks of the nodes.
class Messages {
 public:
  Messages(const World& world, const Nodes& nodes) : world_(world), two_nodes_(nodes.count() == 2) {
    const auto own = nodes.of_rank.begin() + world.rank();
    const bool first = std::find(nodes.of_rank.begin(), own, *own) == own;
    comm_ = WorldAccess::split(world, first ? 0 : -1);
    if (first) ring_ = neighbours_in(comm_.get(), true);
  }

  /// Seconds of a message of so many bytes on the slowest link: the median over about `seconds`.
  double median(std::size_t bytes, double seconds) {
    constexpr std::size_t kFewestRuns = 3, kMostRuns = 9;
    if (two_nodes_)
      seconds /= bytes == kLengths[0] ? 4.0 : 2.0;  // a round has two directions, or four messages
    const double once = time(bytes, 2);             // also opens connections and warms the caches
    const int rounds = static_cast<int>(std::clamp(seconds / kMostRuns / once, 1.0, 1000.0));
    std::vector<double> times;
    double spent = 0.0;  // the same on all ranks, so that all measure as often
    while (times.size() < kFewestRuns || (times.size() < kMostRuns && spent < seconds)) {
      times.push_back(time(bytes, rounds));
      spent += rounds * times.back();
    }
    std::ranges::sort(times);
    const double found = times[times.size() / 2];
    if (bytes == kLengths[0]) answer_s_ = found;
    return found;
  }

 private:
  double time(std::size_t bytes, int rounds) {
    out_.resize(bytes);
    in_.resize(bytes);
    if (!two_nodes_) return time_rounds(rounds, [&] { pass_around(); });
    double slowest_s = 0.0;
    for (const int sender : {0, 1})
      slowest_s = std::max(slowest_s, time_rounds(rounds, [&] { send_and_answer(sender); }));
    return bytes == kLengths[0] ? slowest_s / 2.0 : std::max(slowest_s - answer_s_, slowest_s / 2.0);
  }

  /// Of a round on the slowest rank; ranks without a link only wait.
  template <class Round>
  double time_rounds(int rounds, const Round& round) const {
    world_.barrier();
    const double begin = steady_seconds();
    for (int i = 0; i < rounds && ring_.comm != MPI_COMM_NULL; ++i) round();
    const double mine = ring_.comm == MPI_COMM_NULL ? 0.0 : (steady_seconds() - begin) / rounds;
    return slowest(mine, world_);
  }

  /// A message to the right and one from the left, on all links at once.
  void pass_around() {
    check(
        MPI_Sendrecv(out_.data(), static_cast<int>(out_.size()), MPI_BYTE, ring_.right(), 0, in_.data(),
                     static_cast<int>(in_.size()), MPI_BYTE, ring_.left(), 0, ring_.comm, MPI_STATUS_IGNORE),
        kAction, ring_.right());
  }

  /// A message, and one of the shortest length back. Long ones in both directions at once would share a connection,
  /// which MPI over TCP does not fill both ways; with more nodes, each connection carries one direction.
  void send_and_answer(int sender) {
    const auto send = [&](std::size_t bytes) {
      check(MPI_Send(out_.data(), static_cast<int>(bytes), MPI_BYTE, ring_.right(), 0, ring_.comm), kAction,
            ring_.right());
    };
    const auto receive = [&](std::size_t bytes) {
      check(MPI_Recv(in_.data(), static_cast<int>(bytes), MPI_BYTE, ring_.left(), 0, ring_.comm,
                     MPI_STATUS_IGNORE),
            kAction, ring_.left());
    };
    const bool sends = ring_.rank == sender;
    if (sends) send(out_.size());
    receive(sends ? kLengths[0] : in_.size());
    if (!sends) send(kLengths[0]);
  }

  static constexpr const char* kAction = "measuring the links";
  const World& world_;
  bool two_nodes_;
  Communicator comm_;
  Neighbours ring_;
  std::vector<std::byte> out_, in_;
  double answer_s_ = 0.0;  ///< of the shortest message
};

double measure_memory(const World& world) {
  constexpr std::size_t kFloats = 1 << 20;
  constexpr int kTimes = 16;
  std::vector<float> a(kFloats, 1.0f), b(kFloats, 1.0f);
  world.barrier();
  const double begin = steady_seconds();
  for (int i = 0; i < kTimes; ++i) add(a.data(), b.data(), kFloats);
  return 3.0 * sizeof(float) * kFloats * kTimes / slowest(steady_seconds() - begin, world);
}

}  // namespace

LinkBenchmark benchmark_links(double seconds, const World& world) {
  const Nodes nodes = nodes_of(world);
  std::optional<Error> problem;
  if (nodes.count() < 2)
    problem.emplace(
        ErrorKind::usage,
        "links are measured between nodes, and all ranks are on one node; start ranks on at least two nodes");
  world.agree(problem);
  Messages messages(world, nodes);
  LinkBenchmark result{.nodes = nodes.count(), .message = {}};
  for (const std::size_t bytes : kLengths)
    result.message.emplace_back(bytes, messages.median(bytes, seconds));
  const auto& [shorter, shorter_s] = result.message.front();
  const auto& [longer, longer_s] = result.message.back();
  result.bytes_per_s = static_cast<double>(longer - shorter) / std::max(longer_s - shorter_s, 1e-9);
  result.memory_bytes_per_s = measure_memory(world);
  return result;
}

}  // namespace cifar_mpi::comm
