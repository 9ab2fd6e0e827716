#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// A training step as data: an ordered list of "run this task on that lane", "set a mark", "wait for a mark".
///
/// All choices are made while the list is built; running it is replay. Runners, the verifier, the profile and
/// the benchmark all read the same list.
namespace cifar_mpi::engine {

/// A range of bytes a task touches. Addresses are only compared, never followed, so device memory is fine.
struct Bytes {
  const std::byte* begin = nullptr;
  std::size_t size = 0;

  const std::byte* end() const { return begin + size; }
  bool overlaps(const Bytes& other) const {
    return size != 0 && other.size != 0 && begin < other.end() && other.begin < end();
  }
};

/// The bytes of `count` values at `data`.
template <class T>
Bytes bytes_of(const T* data, std::size_t count) {
  return {reinterpret_cast<const std::byte*>(data), count * sizeof(T)};
}

/// What a task may enqueue on. The host offers nothing; the CUDA backend's lane has a stream.
class Lane {
 public:
  virtual ~Lane() = default;
  /// A task of several milliseconds calls this every now and then while it runs on the host, so that
  /// collectives that are out move on. It must not be called while the task has anything half done in memory
  /// that it did not declare.
  virtual void make_progress() {}
};

/// The least that a task can do with in one replay: a limit to measure it against, it changes nothing.
struct Cost {
  double flops = 0.0;  ///< of products, without taps that fall outside the image, and of Fourier transforms
  double bytes = 0.0;  ///< read from memory and written to it; 0: as many as it declares
};

/// What a rank does in a task: work of its own, or taking part in something with the others, for whom it waits.
enum class TaskKind : std::uint8_t { work, collective };

/// One piece of work with a name, which bytes it reads and which it writes.
struct Task {
  std::string name;
  std::vector<Bytes> reads;
  std::vector<Bytes> writes;
  /// Does the work, or enqueues it on the lane, or starts it when there is a `poll`. Throws Error.
  std::function<void(Lane&)> start;
  /// Only for work of the host that goes on by itself after `start` (a message, a collective): moves it forward,
  /// true when it is done. On a lane of a device it begins when all before it in the lane is done there, and what
  /// stands behind it in the lane is enqueued when it is done.
  std::function<bool()> poll;
  /// May run beside the tasks that follow, as far as they touch other bytes (see Branches): another kernel
  /// finds room next to it.
  bool concurrent = false;
  Cost cost = {};
  TaskKind kind = TaskKind::work;
  /// Looks at what others have made, for people: runs only in replays that are observed (Runner::observe), and
  /// what it writes no task reads that is no observer.
  bool observer = false;
};

using LaneId = std::int32_t;
constexpr LaneId kCompute = 0;
constexpr LaneId kComm = 1;
constexpr LaneId kFirstSide = 2;

using MarkId = std::int32_t;
using TaskId = std::int32_t;

enum class Op : std::uint8_t { run, set, wait };

/// One line of a program; `target` is a TaskId for `run` and a MarkId otherwise.
struct Instruction {
  Op op = Op::run;
  LaneId lane = kCompute;
  std::int32_t target = 0;
};

/// The ordered list. Work of one lane happens in list order; between lanes only marks order it: `wait(lane,
/// m)` holds the lane until everything its setter's lane had in the list before the most recent `set(·, m)`
/// is done. A replay begins where the one before it ended: the lanes go on in their own order, no barrier
/// stands between replays.
class StepProgram {
 public:
  explicit StepProgram(std::string name) : name_(std::move(name)) {}

  TaskId run(LaneId lane, Task task);
  /// A new mark, set by `lane` at this place.
  MarkId set(LaneId lane);
  void wait(LaneId lane, MarkId mark);

  /// Ends building: throws std::logic_error when a lane other than compute does not join back to compute, or
  /// when the verifier finds two unordered tasks that touch the same bytes (its text names them).
  void finalize();

  const std::string& name() const { return name_; }
  const std::vector<Task>& tasks() const { return tasks_; }
  const std::vector<Instruction>& instructions() const { return instructions_; }
  int lanes() const { return lanes_; }
  int marks() const { return marks_; }
  bool finalized() const { return finalized_; }

 private:
  std::string name_;
  std::vector<Task> tasks_;
  std::vector<Instruction> instructions_;
  int lanes_ = 1;
  int marks_ = 0;
  bool finalized_ = false;
};

}  // namespace cifar_mpi::engine
