#pragma once

#include <vector>

#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// What the marks of a program say about its collectives, by TaskId, ascending: of a collective the work tasks
/// behind which its lane may start it (the last one of each lane that it waits for; the last writer of its
/// bucket is among them), of a work task the collectives that its lane has waited for since the task before it.
/// Collectives that follow each other without a wait have the first one's.
std::vector<std::vector<TaskId>> find_dependencies(const StepProgram& program);

/// The lane of every task, by TaskId.
std::vector<LaneId> lanes_of(const StepProgram& program);

}  // namespace cifar_mpi::engine
