#include "cifar_mpi/engine/program.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/verify.hpp"

namespace cifar_mpi::engine {
namespace {

void check_building(const StepProgram& program, LaneId lane) {
  if (program.finalized())
    throw std::logic_error(concat("program '", program.name(), "' is finalized and takes no more lines"));
  if (lane < 0) throw std::logic_error(concat("program '", program.name(), "': there is no lane ", lane));
}

/// True if compute waits for a mark that `lane` sets after its last task, or if `lane` has no task.
bool joins_compute(const StepProgram& program, LaneId lane) {
  std::vector<bool> covers(static_cast<std::size_t>(program.marks()),
                           false);  // mark → set after the last task so far
  bool joined = true;
  for (const Instruction& line : program.instructions()) {
    const auto target = static_cast<std::size_t>(line.target);
    if (line.op == Op::run && line.lane == lane) {
      std::fill(covers.begin(), covers.end(), false);
      joined = false;
    }
    if (line.op == Op::set && line.lane == lane) covers[target] = true;
    if (line.op == Op::wait && line.lane == kCompute && covers[target]) joined = true;
  }
  return joined;
}

}  // namespace

TaskId StepProgram::run(LaneId lane, Task task) {
  check_building(*this, lane);
  const auto id = static_cast<TaskId>(tasks_.size());
  tasks_.push_back(std::move(task));
  instructions_.push_back({Op::run, lane, id});
  lanes_ = std::max(lanes_, lane + 1);
  return id;
}

MarkId StepProgram::set(LaneId lane) {
  check_building(*this, lane);
  instructions_.push_back({Op::set, lane, marks_});
  lanes_ = std::max(lanes_, lane + 1);
  return marks_++;
}

void StepProgram::wait(LaneId lane, MarkId mark) {
  check_building(*this, lane);
  if (mark < 0 || mark >= marks_) {
    throw std::logic_error(concat("program '", name_, "': lane ", lane, " waits for mark ", mark,
                                  ", but only ", marks_,
                                  " marks are set before this line; set a mark first"));
  }
  instructions_.push_back({Op::wait, lane, mark});
  lanes_ = std::max(lanes_, lane + 1);
}

void StepProgram::finalize() {
  check_building(*this, kCompute);
  for (LaneId lane = 0; lane < lanes_; ++lane) {
    if (lane == kCompute || joins_compute(*this, lane)) continue;
    throw std::logic_error(
        concat("program '", name_, "': lane ", lane,
               " does not join back; set a mark after its last task and let compute wait for it"));
  }
  const std::vector<Race> races = find_races(*this);
  if (!races.empty()) {
    constexpr std::size_t kShown = 8;
    std::string text;
    for (std::size_t i = 0; i < std::min(races.size(), kShown); ++i) text += describe(*this, races[i]) + "\n";
    throw std::logic_error(concat(text, races.size(), " in all"));
  }
  finalized_ = true;
}

}  // namespace cifar_mpi::engine
