#include "train/snapshot.hpp"

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "run/run_checkpoints.hpp"

namespace cifar_mpi::train {

run::Checkpoint snapshot(const SessionState& state, const optim::Schedule& schedule, std::uint64_t step,
                         std::optional<double> test_accuracy) {
  run::Checkpoint c;
  c.optimizer = state.config.optimizer;
  c.outer_momentum = has_outer_momentum(state.config);
  c.state = state.state.read(*state.backend, *state.tower, state.network.params);
  c.progress = state.progress;
  c.progress.step = step;
  c.progress.epoch = static_cast<double>(step) / state.sizes.steps_per_epoch;
  c.progress.samples_seen = step * state.sizes.global_batch;
  run::Provenance& from = c.provenance;
  from.ranks = state.world.size();
  from.global_batch = state.sizes.global_batch;
  from.learning_rate = schedule.rate(step);
  from.learning_rate_rule = schedule.describe();
  from.precision = to_string(state.config.precision);
  from.backend = state.backend->description();
  from.kernels = state.tower->plan_text();
  from.configuration = run::without_paths(state.config.text);
  from.git_revision = git_revision();
  from.time = wall_time();
  from.test_accuracy = test_accuracy;
  from.initialized_from = state.initialized_from;
  from.self_check = state.self_check;
  return c;
}

}  // namespace cifar_mpi::train
