#pragma once

#include "train/state.hpp"

/// What workers and servers have of each other. All of these are collective, and stand outside of World::together.
namespace cifar_mpi::train {

/// Makes the workers a world of their own, where there are servers beside them; their devices are their own business.
void part_workers(SessionState& state);

/// All workers must have planned the same kernels: the flat blocks are summed as they lie in memory. Servers plan
/// nothing, and take the precision and the layout of the blocks from the first worker.
void share_plan(SessionState& state);

/// Servers begin with what the first worker begins with: how values lie in a block its kernels know.
void share_state(SessionState& state);

/// Between steps, with nothing under way. Every rank then has the rows of the state that change in
/// steps, also where only servers change them, and knows how many batches each worker has computed.
void complete_state(SessionState& state);

}  // namespace cifar_mpi::train
