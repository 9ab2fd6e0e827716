#include "cifar_mpi/engine/verify.hpp"

#include <algorithm>
#include <cstdint>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::engine {
namespace {

/// clock[lane]: number of that lane's tasks that are known to be done.
using Clock = std::vector<std::uint32_t>;

/// One run of a task in one of the two replays.
struct Visit {
  TaskId task = 0;
  LaneId lane = kCompute;
  Clock clock;  ///< at its start; for its own lane, at its end
};

bool ordered(const Visit& before, const Visit& after) {
  const auto lane = static_cast<std::size_t>(before.lane);
  return before.clock[lane] <= after.clock[lane];
}

/// The visits of both replays in list order; the second replay's are the second half.
std::vector<Visit> walk_twice(const StepProgram& program) {
  const auto lanes = static_cast<std::size_t>(program.lanes());
  std::vector<Clock> now(lanes, Clock(lanes, 0));
  std::vector<Clock> marks(static_cast<std::size_t>(program.marks()), Clock(lanes, 0));
  std::vector<Visit> visits;
  visits.reserve(2 * program.tasks().size());
  for (int replay = 0; replay < 2; ++replay) {
    for (const Instruction& line : program.instructions()) {
      const auto lane = static_cast<std::size_t>(line.lane);
      const auto target = static_cast<std::size_t>(line.target);
      switch (line.op) {
        case Op::run:
          ++now[lane][lane];
          visits.push_back({line.target, line.lane, now[lane]});
          break;
        case Op::set:
          marks[target] = now[lane];
          break;
        case Op::wait:
          for (std::size_t i = 0; i < lanes; ++i) now[lane][i] = std::max(now[lane][i], marks[target][i]);
          break;
      }
    }
  }
  return visits;
}

/// Replaces `widest` by the largest overlap of a range of `a` with one of `b`, if that is larger.
void widen(Bytes& widest, const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
  for (const Bytes& x : a) {
    for (const Bytes& y : b) {
      if (!x.overlaps(y)) continue;
      const std::byte* const begin = std::max(x.begin, y.begin);
      const auto size = static_cast<std::size_t>(std::min(x.end(), y.end()) - begin);
      if (size > widest.size) widest = {begin, size};
    }
  }
}

/// The largest range that both touch and at least one writes; empty without a conflict.
Bytes conflict(const Task& a, const Task& b) {
  Bytes widest;
  widen(widest, a.writes, b.writes);
  widen(widest, a.writes, b.reads);
  widen(widest, a.reads, b.writes);
  return widest;
}

std::string lane_name(const StepProgram& program, TaskId task) {
  for (const Instruction& line : program.instructions()) {
    if (line.op != Op::run || line.target != task) continue;
    if (line.lane == kCompute) return "compute";
    if (line.lane == kComm) return "comm";
    return concat("side ", line.lane - kFirstSide);
  }
  return "no lane";
}

}  // namespace

std::vector<Race> find_races(const StepProgram& program) {
  const std::vector<Visit> visits = walk_twice(program);
  const std::size_t count = visits.size() / 2;
  std::vector<Race> races;
  // a precedes b in the list. Two questions suffice: are a and b ordered in one replay, and b before a of the
  // next? The order of a and the next replay's b equals that of a and b, because b's lane keeps its order;
  // the same holds for replays farther apart.
  for (std::size_t b = 1; b < count; ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      const bool here = !ordered(visits[a], visits[b]);
      const bool next = !ordered(visits[b], visits[count + a]);
      if (!here && !next) continue;
      const TaskId first = visits[a].task;
      const TaskId second = visits[b].task;
      const Bytes both = conflict(program.tasks()[static_cast<std::size_t>(first)],
                                  program.tasks()[static_cast<std::size_t>(second)]);
      if (both.size == 0) continue;
      races.push_back(here ? Race{first, second, false, both} : Race{second, first, true, both});
    }
  }
  return races;
}

std::string describe(const StepProgram& program, const Race& race) {
  const auto name = [&](TaskId task) { return program.tasks()[static_cast<std::size_t>(task)].name; };
  const std::string earlier_lane = lane_name(program, race.earlier);
  const std::string later_lane = lane_name(program, race.later);
  return concat("race in ", program.name(), ": '", name(race.earlier), "' (", earlier_lane, ") and '",
                name(race.later), "' (", later_lane, race.next_replay ? ", next replay" : "", ") both touch ",
                race.bytes.size, " bytes, at least one writes them, and no mark orders the two tasks; let ",
                later_lane, " wait for a mark set by ", earlier_lane, " after the first task");
}

}  // namespace cifar_mpi::engine
