#pragma once

#include <vector>

#include "cifar_mpi/step/step.hpp"

/// What the steps of --optimizer muon have in addition to those of other optimizers (optim::NewtonSchulz).
namespace cifar_mpi::step {

/// Throws Error{usage} if the network has no hidden matrix.
void require_hidden_matrices(const evaluation::Network& network);

/// Whether each matrix is computed on one rank (--share-matrices). The moves then lie at the beginning of
/// Update::rank_sums. Collective; returns the same on all ranks.
bool shares_matrices(const Plan& plan, const Device& device);

/// The rank that computes each matrix: the largest first, each on the rank with the least work so far. The same on all
/// ranks.
std::vector<int> owners_of(const std::vector<engine::Matrix>& matrices, int ranks);

/// Allocates Blocks::hidden; nothing with another optimizer.
void allocate_hidden(const Plan& plan, const Device& device, Blocks& blocks);

/// The parameters with the rates of their roles: muon's rates for biases, scales and both ends, as factors of --lr.
/// With another optimizer, those of the network.
model::ParamTable params_with_rates(const Plan& plan);

/// The tasks of the hidden matrices inside the span of `update`, in order; none with another optimizer. If they are
/// shared, the last is the sum of the moves over the ranks. All ranks have tasks of the same names in the same order; for
/// a matrix of another rank they are idle, or clear the moves that they would write. Throws std::logic_error if the span
/// cuts a matrix.
std::vector<engine::Task> matrix_tasks(const StepContext& context, const engine::UpdateBinding& update);

}  // namespace cifar_mpi::step
