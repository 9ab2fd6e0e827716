#include "cifar_mpi/comm/benchmark.hpp"

#include <mpi.h>
#include <sched.h>

#include <cstring>
#include <memory>

#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"
#include "comm/rounds.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

/// Some hundred times the clock's resolution.
constexpr Pace kHostPace{20e-6, 1};

/// One algorithm, and its data at the current length.
struct Contender {
  std::string algorithm;
  std::unique_ptr<Collective> collective;
  Buffer buffer;
  engine::Task task;
};

void copy(const Buffer& to, const Buffer& from) {
  if (from.size() > 0) std::memcpy(to.data(), from.data(), from.size());
}

/// The MPI library's blocking call, as a reference: its choice of algorithm differs from that of the
/// non-blocking call, which `mpi` must use.
void sum_blocking(const Buffer& data, MPI_Comm comm, int times) {
  for (int i = 0; i < times; ++i) {
    check(MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size() / sizeof(float)), MPI_FLOAT,
                        MPI_SUM, comm),
          "summing with MPI_Allreduce");
  }
}

void sum(const engine::Task& task, bool yields, int times) {
  engine::Lane lane;
  for (int i = 0; i < times; ++i) {
    task.start(lane);
    while (!task.poll()) {
      if (yields) sched_yield();
    }
  }
}

/// All algorithms at one length.
class HostArrays {
 public:
  HostArrays(const World& world, std::vector<Contender>& contenders, std::size_t bytes);
  ~HostArrays();
  HostArrays(const HostArrays&) = delete;
  HostArrays& operator=(const HostArrays&) = delete;

  std::vector<AllReduceTiming> measure(double seconds) const;

 private:
  const World& world_;
  std::vector<Contender>& contenders_;
  Communicator comm_;
  Buffer values_;  ///< the content of every array before each run
  Buffer copy_;
};

HostArrays::HostArrays(const World& world, std::vector<Contender>& contenders, std::size_t bytes)
    : world_(world), contenders_(contenders), comm_(WorldAccess::duplicate(world)) {
  for (Contender& c : contenders_) c.buffer = c.collective->allocate(bytes);
  world_.together([&] {
    values_ = allocate_host(bytes);
    copy_ = allocate_host(bytes);
    fill_inputs(values_.span<float>(), world_.rank());
    for (Contender& c : contenders_)
      c.task = c.collective->all_reduce(c.algorithm, c.buffer.span<float>(), 0);
  });
}

HostArrays::~HostArrays() {
  for (Contender& c : contenders_) {
    c.task = {};
    c.buffer = {};
  }
}

std::vector<AllReduceTiming> HostArrays::measure(double seconds) const {
  Measured copying;
  copying.run = [&](int) { copy(copy_, values_); };
  std::vector<Measured> sums(1);
  sums[0].run = [&](int times) { sum_blocking(copy_, comm_.get(), times); };
  for (const Contender& c : contenders_) {
    sums.emplace_back();
    sums.back().prepare = [&] { copy(c.buffer, values_); };
    sums.back().run = [&, yields = world_.oversubscribed()](int times) { sum(c.task, yields, times); };
  }
  Rounds rounds(world_, kHostPace, std::move(copying), std::move(sums));
  rounds.run(seconds);
  std::vector<AllReduceTiming> timings;
  for (std::size_t i = 0; i < contenders_.size(); ++i) {
    const Contender& c = contenders_[i];
    AllReduceTiming& t = timings.emplace_back(rounds.timing(rounds.sums()[i + 1], values_.size()));
    t.algorithm = c.algorithm;
    t.resolved = c.collective->name();
    t.mpi_allreduce_s = rounds.sums()[0].median();
    t.wrong = wrong_sums(c.buffer.span<float>(), world_);
  }
  return timings;
}

/// The default algorithms: all that these nodes and the wire allow.
std::vector<std::string> all_algorithms(const Nodes& nodes, Wire wire) {
  std::vector<std::string> names;
  for (const CollectiveInfo& info : collectives()) {
    const bool possible = !info.one_node || nodes.count() == 1;
    if (possible && can_have(info, wire)) names.emplace_back(info.name);
  }
  return names;
}

}  // namespace

double AllReduceTiming::algorithm_bandwidth() const { return static_cast<double>(bytes) / median_s; }

double AllReduceTiming::bus_bandwidth() const { return algorithm_bandwidth() * 2.0 * (ranks - 1) / ranks; }

double AllReduceTiming::copies() const { return median_s * copy_bytes_per_s / static_cast<double>(bytes); }

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
    const HostArrays arrays(world, contenders, bytes);
    for (AllReduceTiming& timing : arrays.measure(config.seconds))
      result.timings.push_back(std::move(timing));
  }
  for (const Contender& contender : contenders) {
    const std::string note = contender.collective->note();
    if (!note.empty()) result.notes.push_back(note);
  }
  return result;
}

}  // namespace cifar_mpi::comm
