#include "cifar_mpi/engine/dependencies.hpp"

#include <algorithm>

namespace cifar_mpi::engine {
namespace {

constexpr TaskId kNone = -1;

/// The waits before a lane's next task.
struct Front {
  std::vector<TaskId> awaited;  ///< the last tasks of other lanes that the lane waited for
  bool used = false;            ///< a task follows them
};

void add(std::vector<TaskId>& tasks, TaskId task) {
  const auto place = std::ranges::lower_bound(tasks, task);
  if (place == tasks.end() || *place != task) tasks.insert(place, task);
}

}  // namespace

std::vector<std::vector<TaskId>> find_dependencies(const StepProgram& program) {
  std::vector<std::vector<TaskId>> dependencies(program.tasks().size());
  const auto kind = [&](TaskId task) { return program.tasks()[static_cast<std::size_t>(task)].kind; };
  std::vector<TaskId> last(static_cast<std::size_t>(program.lanes()), kNone);
  std::vector<TaskId> set_after(static_cast<std::size_t>(program.marks()), kNone);
  std::vector<Front> fronts(static_cast<std::size_t>(program.lanes()));
  for (const Instruction& line : program.instructions()) {
    const auto lane = static_cast<std::size_t>(line.lane);
    const auto target = static_cast<std::size_t>(line.target);
    Front& front = fronts[lane];
    switch (line.op) {
      case Op::run: {
        const bool collective = kind(line.target) == TaskKind::collective;
        if (collective || !front.used) {
          for (const TaskId task : front.awaited) {
            if ((kind(task) == TaskKind::collective) != collective) add(dependencies[target], task);
          }
        }
        front.used = true;
        last[lane] = line.target;
        break;
      }
      case Op::set:
        set_after[target] = last[lane];
        break;
      case Op::wait:
        if (front.used) front = {};
        if (set_after[target] != kNone && set_after[target] != last[lane])
          add(front.awaited, set_after[target]);
        break;
    }
  }
  return dependencies;
}

std::vector<LaneId> lanes_of(const StepProgram& program) {
  std::vector<LaneId> lanes(program.tasks().size(), kCompute);
  for (const Instruction& line : program.instructions()) {
    if (line.op == Op::run) lanes[static_cast<std::size_t>(line.target)] = line.lane;
  }
  return lanes;
}

}  // namespace cifar_mpi::engine
