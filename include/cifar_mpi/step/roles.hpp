#pragma once

#include "cifar_mpi/step/step.hpp"

/// What workers and servers have of each other. All of these are collective, and stand outside of World::together.
namespace cifar_mpi::step {

/// Makes the workers a world of their own, where there are servers beside them; their devices are their own business.
void part_workers(Plan& plan);

/// All workers must have planned the same kernels: the flat blocks are summed as they lie in memory. Servers plan
/// nothing, and take the precision and the layout of the blocks from the first worker.
void share_kernels(Plan& plan, Device& device);

/// Servers begin with what the first worker begins with: how values lie in a block its kernels know.
void share_state(const Plan& plan, const Device& device, const StateTable& state);

/// Between steps, with nothing under way. Every rank then has the rows of the state that change in
/// steps, also where only servers change them, and knows how many batches each worker has computed.
void complete_state(Plan& plan, const Device& device, Blocks& blocks);

}  // namespace cifar_mpi::step
