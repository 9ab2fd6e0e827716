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

/// A range of bytes that a task touches. Addresses are compared, never dereferenced, so device memory is
/// allowed.
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

/// Where a task may enqueue work. A host lane is empty; a lane of the CUDA backend has a stream.
class Lane {
 public:
  virtual ~Lane() = default;
  /// A host task of several milliseconds calls this now and then, so that outstanding collectives make
  /// progress. At that moment it must leave no undeclared memory half written.
  virtual void make_progress() {}
};

/// Lower bounds of a task's work in one replay. They are a yardstick only and change nothing.
struct Cost {
  double flops = 0.0;  ///< of products, without taps outside the image, and of Fourier transforms
  double bytes = 0.0;  ///< read from and written to memory; 0: the declared bytes
};

/// A task is work of this rank, or a collective that waits for other ranks.
enum class TaskKind : std::uint8_t { work, collective };

/// A named piece of work, with the bytes that it reads and writes.
struct Task {
  std::string name;
  std::vector<Bytes> reads;
  std::vector<Bytes> writes;
  /// Does the work, enqueues it on the lane, or, if there is a `poll`, starts it. Throws Error.
  std::function<void(Lane&)> start;
  /// Only for host work that continues after `start` (a message, a collective): advances it, and returns true
  /// once it is done. On a device lane it begins after all earlier work of the lane, and later work is
  /// enqueued once it is done.
  std::function<bool()> poll;
  /// May run beside later tasks that touch other bytes (see Branches), because it leaves part of the device
  /// idle.
  bool concurrent = false;
  Cost cost = {};
  TaskKind kind = TaskKind::work;
  /// Reads results for people: it runs only in observed replays (Runner::observe), and only observers read
  /// its output.
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

/// The ordered list. Work of one lane happens in list order; only marks order different lanes: `wait(lane,
/// m)` blocks the lane until everything before the most recent `set(·, m)` in the setter's lane is done. A
/// replay begins where the previous one ended: lanes continue in their own order without a barrier between
/// replays.
class StepProgram {
 public:
  explicit StepProgram(std::string name) : name_(std::move(name)) {}

  TaskId run(LaneId lane, Task task);
  /// A new mark that `lane` sets at this place.
  MarkId set(LaneId lane);
  void wait(LaneId lane, MarkId mark);

  /// Ends building. Throws std::logic_error when a lane does not join compute, or when the verifier finds two
  /// unordered tasks that touch the same bytes, which it names.
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
