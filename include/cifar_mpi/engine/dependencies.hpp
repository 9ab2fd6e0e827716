#pragma once

#include <vector>

#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Dependencies between work tasks and collectives that the marks of a program express, by TaskId, ascending.
///
/// For a collective: the work tasks after which its lane may start it, the last one of each lane that it
/// waits for, among them the last writer of its bucket. For a work task: the collectives that its lane has
/// waited for since its previous task. Collectives in a row without a wait between them share the
/// dependencies of the first.
std::vector<std::vector<TaskId>> find_dependencies(const StepProgram& program);

/// The lane of every task, by TaskId.
std::vector<LaneId> lanes_of(const StepProgram& program);

}  // namespace cifar_mpi::engine
