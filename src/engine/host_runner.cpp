#include <sched.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/runner.hpp"
#include "engine/audit.hpp"
#include "engine/task_clock.hpp"

namespace cifar_mpi::engine {
namespace {

#if defined(__x86_64__)
void pause_core() { __builtin_ia32_pause(); }
#else
void pause_core() {}
#endif

void give_way(WhileWaiting waiting) {
  if (waiting == WhileWaiting::yield) {
    sched_yield();
  } else {
    pause_core();
  }
}

/// The common part of both host runners: the program, the lane for tasks and the clock.
class HostRunner : public Runner {
 public:
  HostRunner(StepProgram program, WhileWaiting waiting)
      : program_(std::move(program)), waiting_(waiting), clock_(program_.tasks().size()) {}

  void replay(int times) final {
    for (int i = 0; i < times; ++i, ++finished_) replay_once();
  }
  void finish() override {}
  std::uint64_t finished() const override { return finished_; }
  const StepProgram& program() const override { return program_; }
  std::vector<double> task_seconds() const override { return clock_.seconds(); }
  void observe(const Observation& observation) override {
    clock_.record_in(observation.recorder);
    look_ = observation.look;
  }
  void show_in(ProgressCounter& counter) override { clock_.show_in(counter); }

 protected:
  virtual void replay_once() = 0;
  const Task& task(TaskId id) const { return program_.tasks()[static_cast<std::size_t>(id)]; }
  bool skips(TaskId id) const { return !look_ && task(id).observer; }

  StepProgram program_;
  WhileWaiting waiting_;
  TaskClock clock_;
  Lane host_;

 private:
  bool look_ = false;
  std::uint64_t finished_ = 0;
};

/// Runs one task after another; marks have nothing left to order.
class SerialRunner : public HostRunner {
 public:
  SerialRunner(StepProgram program, WhileWaiting waiting) : HostRunner(std::move(program), waiting) {}

  void watch(std::vector<Bytes> regions) { audit_.emplace(program_, std::move(regions)); }

 private:
  void replay_once() override {
    clock_.begin();
    if (audit_) audit_->begin();
    for (const Instruction& line : program_.instructions()) {
      if (line.op != Op::run || skips(line.target)) continue;
      if (audit_) audit_->before(line.target);
      clock_.progress();
      clock_.charge(line.target);
      run(task(line.target));
      clock_.charge_nobody();
      if (audit_) audit_->after(line.target);
    }
    if (audit_) audit_->end();
  }

  void run(const Task& task) {
    task.start(host_);
    if (!task.poll) return;
    while (!task.poll()) give_way(waiting_);
  }

  std::optional<Audit> audit_;
};

/// One thread walks the list. It executes the compute lane line by line; every other lane is a queue that the
/// walk fills and whose head runs when it can: a wait passes once its mark is set, a task starts once the one
/// before it is done. So tasks without a poll run in list order unless they wait for an outstanding
/// collective.
class LanesRunner : public HostRunner {
 public:
  LanesRunner(StepProgram program, WhileWaiting waiting);

 private:
  void replay_once() override;

  /// The lane that compute tasks get: other lanes progress between their pieces.
  class ComputeLane : public Lane {
   public:
    explicit ComputeLane(LanesRunner& runner) : runner_(runner) {}
    void make_progress() override { runner_.make_progress(); }

   private:
    LanesRunner& runner_;
  };

  static constexpr TaskId kNone = -1;

  struct Line {
    Op op = Op::run;
    std::int32_t target = 0;
  };
  struct Queue {
    std::vector<Line> lines;   ///< this lane's part of the list
    std::size_t next = 0;      ///< the next line
    std::size_t released = 0;  ///< lines before this one are in the queue
    TaskId in_flight = kNone;  ///< started, and not yet done by its poll

    bool idle() const { return next == released && in_flight == kNone; }
  };

  bool advance(Queue& queue);
  bool advance_all();
  void make_progress();
  bool all_idle() const;
  template <class Done>
  void wait_until(const Done& done);

  std::vector<Queue> queues_;  ///< by lane
  Queue* running_ = nullptr;   ///< the lane whose task runs on this thread
  ComputeLane compute_lane_{*this};
  std::vector<std::uint64_t> mark_set_in_;  ///< mark → the last replay that set it
  std::uint64_t replay_ = 0;
};

LanesRunner::LanesRunner(StepProgram program, WhileWaiting waiting)
    : HostRunner(std::move(program), waiting),
      queues_(static_cast<std::size_t>(program_.lanes())),
      mark_set_in_(static_cast<std::size_t>(program_.marks()), 0) {
  for (const Instruction& line : program_.instructions()) {
    queues_[static_cast<std::size_t>(line.lane)].lines.push_back({line.op, line.target});
  }
}

void LanesRunner::replay_once() {
  ++replay_;
  running_ = nullptr;  // from a replay that ended with an exception
  for (Queue& queue : queues_) queue.next = queue.released = 0, queue.in_flight = kNone;
  clock_.begin();
  Queue& compute = queues_[kCompute];
  for (const Instruction& line : program_.instructions()) {
    Queue& queue = queues_[static_cast<std::size_t>(line.lane)];
    ++queue.released;
    if (line.op == Op::run) {
      advance_all();  // poll after each task
    } else {
      advance(queue);
    }
    wait_until([&] { return compute.next == compute.released; });
  }
  wait_until([&] { return all_idle(); });
  clock_.charge_nobody();
}

/// Advances one lane as far as possible; returns true if it moved. While a task of another lane runs on the
/// thread, only collectives advance: the clock could not charge nested work.
bool LanesRunner::advance(Queue& queue) {
  bool moved = false;
  while (!queue.idle()) {
    if (queue.in_flight != kNone) {
      clock_.charge(queue.in_flight);
      if (!task(queue.in_flight).poll()) return moved;
      queue.in_flight = kNone;
      clock_.progress();
      moved = true;
      continue;
    }
    const Line line = queue.lines[queue.next];
    const auto target = static_cast<std::size_t>(line.target);
    if (line.op == Op::run && running_ != nullptr && !task(line.target).poll) return moved;
    if (line.op == Op::wait && mark_set_in_[target] != replay_) return moved;
    if (line.op == Op::set) mark_set_in_[target] = replay_;
    if (line.op == Op::run && !skips(line.target)) {
      clock_.progress();
      clock_.charge(line.target);
      Queue* const interrupted = std::exchange(running_, &queue);
      task(line.target).start(compute_lane_);
      running_ = interrupted;
      if (task(line.target).poll) queue.in_flight = line.target;
    }
    ++queue.next;
    moved = true;
  }
  return moved;
}

bool LanesRunner::advance_all() {
  bool moved = false;
  for (Queue& queue : queues_) moved = advance(queue) || moved;
  return moved;
}

/// Called by the running task, between its pieces.
void LanesRunner::make_progress() {
  const TaskId charged = clock_.charged();
  for (Queue& queue : queues_) {
    if (&queue != running_) advance(queue);
  }
  clock_.charge(charged);
  clock_.show_progress();
}

bool LanesRunner::all_idle() const {
  for (const Queue& queue : queues_) {
    if (!queue.idle()) return false;
  }
  return true;
}

template <class Done>
void LanesRunner::wait_until(const Done& done) {
  while (!done()) {
    if (!advance_all()) give_way(waiting_);
  }
}

}  // namespace

std::unique_ptr<Runner> make_host_runner(StepProgram program, RunnerKind kind, WhileWaiting waiting,
                                         std::vector<Bytes> regions) {
  if (!program.finalized())
    throw std::logic_error(concat("program '", program.name(), "' must be finalized before it can run"));
  for (const Task& task : program.tasks()) {
    if (!task.start)
      throw std::logic_error(concat("task '", task.name, "' of '", program.name(), "' has no start"));
  }
  switch (kind) {
    case RunnerKind::serial:
      return std::make_unique<SerialRunner>(std::move(program), waiting);
    case RunnerKind::audit: {
      auto runner = std::make_unique<SerialRunner>(std::move(program), waiting);
      runner->watch(std::move(regions));
      return runner;
    }
    case RunnerKind::automatic:
    case RunnerKind::lanes:
      return std::make_unique<LanesRunner>(std::move(program), waiting);
    case RunnerKind::graph:
      break;
  }
  throw Error(ErrorKind::usage,
              "--runner graph needs the CUDA backend; on the CPU choose serial, lanes or audit, or leave "
              "--runner out");
}

}  // namespace cifar_mpi::engine
