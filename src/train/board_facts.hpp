#pragma once

#include <string>
#include <vector>

#include "report/tensorboard.hpp"
#include "train/state.hpp"

/// What TensorBoard is told of a run beyond its steps.
namespace cifar_mpi::train {

/// What makes the run this run, without its dataset, and what it runs with.
RunFingerprint hparams(const SessionState& state);

/// The terms of the loss that weight decay is, by layer in forward order, of the weights as they are, added in
/// double; none where decay is no part of the loss. A pass over the weights in backend memory, between steps.
std::vector<report::WeightLoss> weight_losses(const SessionState& state);

/// Which layers' outputs the summaries lack, and why: a sentence; empty where they lack none.
std::string unseen_outputs(const SessionState& state);

/// How long this rank was in collectives since its start; below 0 where its runner cannot tell, and where there is
/// nobody else.
double communicated_seconds(const SessionState& state);

}  // namespace cifar_mpi::train
