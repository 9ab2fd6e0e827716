#include "cifar_mpi/comm/benchmark.hpp"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "cifar_mpi/base/clock.hpp"
#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

/// From -1 to 1, so that the sums are exact in any order, also on a 16-bit wire up to 256 ranks.
float input(int rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 11) % 3) - 1.0f;
}

void fill(std::span<float> data, int rank) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = input(rank, i);
}

std::size_t wrong_sums(std::span<const float> data, int ranks) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    float sum = 0.0f;
    for (int r = 0; r < ranks; ++r) sum += input(r, i);
    wrong += data[i] != sum ? 1 : 0;
  }
  return wrong;
}

/// `sorted` is not empty.
double quantile(const std::vector<double>& sorted, double q) {
  return sorted[std::min(sorted.size() - 1,
                         static_cast<std::size_t>(q * static_cast<double>(sorted.size())))];
}

/// One algorithm, and what it needs at the length that is being measured.
struct Contender {
  std::string algorithm;
  std::unique_ptr<Collective> collective;
  Buffer buffer;
  engine::Task task;
  std::vector<double> run_s;
};

/// All algorithms at one length, taking turns.
class Rounds {
 public:
  Rounds(const World& world, std::span<Contender> contenders, std::size_t bytes);
  ~Rounds();
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  void run(double seconds);
  AllReduceTiming result(std::size_t contender) const;

 private:
  double round();
  double time_copy();
  double time_blocking();
  double time_run(const engine::Task& task, int sums);
  void refill(const Contender& contender);
  int choose_sums() const;
  void keep_slowest(std::vector<double>& seconds) const;

  const World& world_;
  Communicator comm_;
  std::size_t bytes_;
  int sums_ = 1;   ///< in one run
  Buffer values_;  ///< what every array is before each run
  Buffer copy_;
  std::vector<double> copy_s_;
  std::vector<double> blocking_s_;
  std::span<Contender> contenders_;
};

Rounds::Rounds(const World& world, std::span<Contender> contenders, std::size_t bytes)
    : world_(world), comm_(WorldAccess::duplicate(world)), bytes_(bytes), contenders_(contenders) {
  for (Contender& c : contenders_) c.buffer = c.collective->allocate(bytes);
  world_.together([&] {
    values_ = allocate_host(bytes);
    copy_ = allocate_host(bytes);
    fill(values_.span<float>(), world_.rank());
    for (Contender& c : contenders_)
      c.task = c.collective->all_reduce(c.algorithm, c.buffer.span<float>(), 0);
  });
}

Rounds::~Rounds() {
  for (Contender& c : contenders_) {
    c.task = {};
    c.buffer = {};
  }
}

double Rounds::time_copy() {
  world_.barrier();
  const double begin = steady_seconds();
  if (bytes_ > 0) std::memcpy(copy_.data(), values_.data(), bytes_);
  return steady_seconds() - begin;
}

/// The MPI library's blocking call, the yardstick of all: its choice of algorithm differs from that of the
/// non-blocking one, which `mpi` must use.
double Rounds::time_blocking() {
  world_.barrier();
  const double begin = steady_seconds();
  for (int i = 0; i < sums_; ++i) {
    check(MPI_Allreduce(MPI_IN_PLACE, copy_.data(), static_cast<int>(bytes_ / sizeof(float)), MPI_FLOAT,
                        MPI_SUM, comm_.get()),
          "summing with MPI_Allreduce");
  }
  return (steady_seconds() - begin) / sums_;
}

double Rounds::time_run(const engine::Task& task, int sums) {
  const bool yields = world_.oversubscribed();
  engine::Lane lane;
  world_.barrier();
  const double begin = steady_seconds();
  for (int i = 0; i < sums; ++i) {
    task.start(lane);
    while (!task.poll()) {
      if (yields) sched_yield();
    }
  }
  return (steady_seconds() - begin) / sums;
}

void Rounds::refill(const Contender& contender) {
  if (bytes_ > 0) std::memcpy(contender.buffer.data(), values_.data(), bytes_);
}

/// Enough that a run of the fastest takes 20 us, some hundred times the clock's resolution. The values grow
/// by as many times the number of ranks at each sum, so not more than 32: speed does not depend on values.
int Rounds::choose_sums() const {
  double fastest = blocking_s_.back();
  for (const Contender& c : contenders_) fastest = std::min(fastest, c.run_s.back());
  int sums = static_cast<int>(std::clamp(20e-6 / std::max(fastest, 1e-9), 1.0, 32.0));
  check(MPI_Allreduce(MPI_IN_PLACE, &sums, 1, MPI_INT, MPI_MAX, WorldAccess::all(world_)),
        "agreeing on the sums per run");
  return sums;
}

/// Returns the seconds that all of it took, with the preparation.
double Rounds::round() {
  const double begin = steady_seconds();
  copy_s_.push_back(time_copy());
  blocking_s_.push_back(time_blocking());
  for (Contender& c : contenders_) {
    refill(c);
    c.run_s.push_back(time_run(c.task, sums_));
  }
  return steady_seconds() - begin;
}

void Rounds::run(double seconds) {
  constexpr int kFewest = 5;
  constexpr int kMost = 20000;
  round();  // pages, connections and caches warm up
  round();
  sums_ = choose_sums();
  double one = round();
  check(MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_DOUBLE, MPI_MAX, WorldAccess::all(world_)),
        "agreeing on the number of rounds");
  copy_s_.clear();
  blocking_s_.clear();
  for (Contender& c : contenders_) c.run_s.clear();
  const double fitting = std::clamp(seconds / one, double{kFewest}, double{kMost});
  for (int i = 0; i < static_cast<int>(fitting); ++i) round();
  keep_slowest(copy_s_);
  keep_slowest(blocking_s_);
  for (Contender& c : contenders_) {
    keep_slowest(c.run_s);
    refill(c);
    time_run(c.task, 1);
  }
}

/// Each run's time becomes that of the slowest rank, the same on all; then sorts.
void Rounds::keep_slowest(std::vector<double>& seconds) const {
  check(MPI_Allreduce(MPI_IN_PLACE, seconds.data(), static_cast<int>(seconds.size()), MPI_DOUBLE, MPI_MAX,
                      WorldAccess::all(world_)),
        "finding the slowest rank of each run");
  std::sort(seconds.begin(), seconds.end());
}

AllReduceTiming Rounds::result(std::size_t contender) const {
  const Contender& c = contenders_[contender];
  auto wrong = static_cast<std::uint64_t>(wrong_sums(c.buffer.span<float>(), world_.size()));
  check(MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UINT64_T, MPI_SUM, WorldAccess::all(world_)),
        "counting wrong sums");
  AllReduceTiming t;
  t.algorithm = c.algorithm;
  t.resolved = c.collective->name();
  t.bytes = bytes_;
  t.ranks = world_.size();
  t.runs = static_cast<int>(c.run_s.size());
  t.sums_per_run = sums_;
  t.least_s = c.run_s.front();
  t.median_s = quantile(c.run_s, 0.5);
  t.p99_s = quantile(c.run_s, 0.99);
  t.copy_bytes_per_s = static_cast<double>(bytes_) / quantile(copy_s_, 0.5);
  t.mpi_allreduce_s = quantile(blocking_s_, 0.5);
  t.wrong = wrong;
  return t;
}

/// What to measure when the user does not say: everything but what these nodes and the wire rule out.
std::vector<std::string> all_algorithms(const Nodes& nodes, Wire wire) {
  std::vector<std::string> names;
  for (const CollectiveInfo& info : collectives()) {
    const bool possible = info.name != "window" || nodes.count() == 1;
    if (possible && can_have(info.name, wire)) names.emplace_back(info.name);
  }
  return names;
}

}  // namespace

double AllReduceTiming::algorithm_bandwidth() const { return static_cast<double>(bytes) / median_s; }

double AllReduceTiming::bus_bandwidth() const { return algorithm_bandwidth() * 2.0 * (ranks - 1) / ranks; }

AllReduceBenchmark benchmark_all_reduce(const AllReduceBenchmarkConfig& config, const World& world) {
  const Nodes nodes = nodes_of(world);
  AllReduceBenchmark result;
  result.nodes = nodes.count();
  std::vector<Contender> contenders;
  for (const std::string& name :
       config.algorithms.empty() ? all_algorithms(nodes, config.wire) : config.algorithms) {
    Contender& contender = contenders.emplace_back();
    contender.algorithm = name;
    contender.collective = make_collective(name, world, nodes, config.wire);
  }
  for (const std::size_t bytes : config.bytes) {
    Rounds rounds(world, contenders, bytes);
    rounds.run(config.seconds);
    for (std::size_t c = 0; c < contenders.size(); ++c) result.timings.push_back(rounds.result(c));
  }
  for (const Contender& contender : contenders) {
    const std::string note = contender.collective->note();
    if (!note.empty()) result.notes.push_back(note);
  }
  return result;
}

}  // namespace cifar_mpi::comm
