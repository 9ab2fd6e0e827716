#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Two unordered tasks that touch the same bytes, at least one of them writing.
struct Race {
  TaskId earlier = 0;
  TaskId later = 0;
  bool next_replay = false;  ///< `later` belongs to the next replay
  Bytes bytes;               ///< the bytes both touch
};

/// Walks two consecutive replays of `program` with one vector clock per lane (Lamport 1978; Mattern 1989) and
/// returns every unordered conflicting pair once. If there is none, the result does not depend on timing.
std::vector<Race> find_races(const StepProgram& program);

/// "race in train: 'conv2 weight gradient' (compute) and 'all-reduce 0' (comm, next replay) both touch 1024
/// bytes, …"
std::string describe(const StepProgram& program, const Race& race);

}  // namespace cifar_mpi::engine
