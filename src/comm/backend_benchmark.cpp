#include <memory>
#include <utility>
#include <vector>

#include "cifar_mpi/comm/benchmark.hpp"
#include "comm/collectives.hpp"
#include "comm/rounds.hpp"

namespace cifar_mpi::comm {
namespace {

/// A run is a program's replay; launching it and detecting its end may take some 10 us.
constexpr Pace kBackendPace{1e-3, 256};

/// A task that the backend's runner replays, like a training step.
struct Replay {
  const World* world = nullptr;
  engine::Backend* backend = nullptr;
  engine::LaneId lane = engine::kCompute;
  engine::Task task;
  std::unique_ptr<engine::Runner> runner;

  /// Runners complete their plans in the first two replays.
  void plan(int times) {
    world->together([&] { runner = backend->runner(repeat(times), engine::RunnerKind::automatic, {}); });
    run();
    run();
  }

  void run() const {
    runner->replay();
    runner->finish();
  }

  engine::StepProgram repeat(int times) const {
    engine::StepProgram program(task.name);
    const bool elsewhere = lane != engine::kCompute;
    if (elsewhere) program.wait(lane, program.set(engine::kCompute));
    for (int i = 0; i < times; ++i) program.run(lane, task);
    if (elsewhere) program.wait(engine::kCompute, program.set(lane));
    program.finalize();
    return program;
  }
};

Measured measured(Replay& replay) {
  Measured result;
  result.plan = [&](int times) { replay.plan(times); };
  result.run = [&](int) { replay.run(); };
  return result;
}

/// One algorithm, and its data at the current length. The order of the members matters: graphs are destroyed
/// before memory.
struct BackendContender {
  std::string algorithm;
  std::unique_ptr<Collective> collective;
  Buffer buffer;
  Replay sum;
  Replay refill;
};

/// All algorithms at one length.
class BackendArrays {
 public:
  BackendArrays(const World& world, engine::Backend& backend, std::vector<BackendContender>& contenders,
                std::size_t bytes);
  ~BackendArrays();
  BackendArrays(const BackendArrays&) = delete;
  BackendArrays& operator=(const BackendArrays&) = delete;

  std::vector<AllReduceTiming> measure(double seconds);

 private:
  engine::Task copy_task(const Buffer& to) const;
  engine::Task sum_task(const BackendContender& contender) const;

  const World& world_;
  engine::Backend& backend_;
  std::vector<BackendContender>& contenders_;
  std::vector<float> host_;  ///< data copied to and from the backend
  Buffer values_;            ///< the content of every array before each run
  Buffer copied_;
  Replay copy_;
};

BackendArrays::BackendArrays(const World& world, engine::Backend& backend,
                             std::vector<BackendContender>& contenders, std::size_t bytes)
    : world_(world), backend_(backend), contenders_(contenders) {
  for (BackendContender& c : contenders_) c.buffer = c.collective->allocate(bytes);
  world_.together([&] {
    host_.resize(bytes / sizeof(float));
    fill_inputs(host_, world_.rank());
    values_ = backend_.allocate(bytes);
    copied_ = backend_.allocate(bytes);
    backend_.copy(values_.data(), host_.data(), bytes);
    copy_ = {&world_, &backend_, engine::kCompute, copy_task(copied_), {}};
    for (BackendContender& c : contenders_) {
      c.sum = {&world_, &backend_, engine::kComm, sum_task(c), {}};
      c.refill = {&world_, &backend_, engine::kCompute, copy_task(c.buffer), {}};
    }
  });
}

BackendArrays::~BackendArrays() {
  for (BackendContender& c : contenders_) {
    c.refill = {};
    c.sum = {};
    c.buffer = {};
  }
}

engine::Task BackendArrays::copy_task(const Buffer& to) const {
  return backend_.sum_task("copy", {to.as<float>(), values_.as<const float>(), nullptr, host_.size()});
}

/// Over one rank there is nothing to sum, and collectives need no task for it.
engine::Task BackendArrays::sum_task(const BackendContender& contender) const {
  if (contender.collective->ranks() > 1)
    return contender.collective->all_reduce(contender.algorithm, contender.buffer.span<float>(), 0);
  return {contender.algorithm, {}, {}, [](engine::Lane&) {}, {}};
}

std::vector<AllReduceTiming> BackendArrays::measure(double seconds) {
  std::vector<Measured> sums;
  for (BackendContender& c : contenders_) {
    c.refill.plan(1);
    sums.push_back(measured(c.sum));
    sums.back().prepare = [&] { c.refill.run(); };
  }
  Rounds rounds(world_, kBackendPace, measured(copy_), std::move(sums));
  rounds.run(seconds);
  std::vector<AllReduceTiming> timings;
  for (std::size_t i = 0; i < contenders_.size(); ++i) {
    const BackendContender& c = contenders_[i];
    backend_.copy(host_.data(), c.buffer.data(), c.buffer.size());
    AllReduceTiming& t = timings.emplace_back(rounds.timing(rounds.sums()[i], c.buffer.size()));
    t.algorithm = c.algorithm;
    t.resolved = c.collective->name();
    t.wrong = wrong_sums(host_, world_);
  }
  return timings;
}

}  // namespace

AllReduceBenchmark benchmark_all_reduce(const AllReduceBenchmarkConfig& config, const World& world,
                                        const Platform& platform) {
  AllReduceBenchmark result;
  result.nodes = nodes_of(world).count();
  std::vector<BackendContender> contenders;
  for (const std::string& name :
       config.algorithms.empty() ? std::vector<std::string>{"auto"} : config.algorithms) {
    BackendContender& contender = contenders.emplace_back();
    contender.algorithm = name;
    contender.collective = platform.collectives.make(name, world, config.wire);
  }
  for (const std::size_t bytes : config.bytes) {
    BackendArrays arrays(world, *platform.backend, contenders, bytes);
    for (AllReduceTiming& timing : arrays.measure(config.seconds))
      result.timings.push_back(std::move(timing));
  }
  for (const BackendContender& contender : contenders) {
    const std::string note = contender.collective->note();
    if (!note.empty()) result.notes.push_back(note);
  }
  if (world.size() == 1)
    result.notes.emplace_back("one rank has nothing to sum: the times are of an empty program");
  return result;
}

}  // namespace cifar_mpi::comm
