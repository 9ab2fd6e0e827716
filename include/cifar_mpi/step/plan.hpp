#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/config/config.hpp"
#include "cifar_mpi/evaluation/network.hpp"
#include "cifar_mpi/run/run_directory.hpp"

namespace cifar_mpi::step {

/// Settings adopted from the checkpoint because the user left them automatic.
struct Adopted {
  bool precision = false;
  bool conv = false;
  bool all_reduce = false;
};

/// A rank's plan before it allocates memory: the resolved options, the ranks, the data and the network, and
/// where the run starts.
struct Plan {
  Plan(config::TrainConfig chosen, const comm::World& the_world, const Log& the_log)
      : config(std::move(chosen)), world(the_world), log(the_log) {
    sizes.workers = world.size();
  }

  /// Whether this rank holds weights for others and computes no gradients.
  bool serves() const { return world.rank() >= sizes.workers; }
  /// Ranks that compute.
  const comm::World& computing() const { return workers ? *workers : world; }
  /// This rank's part of so many samples; empty on a server.
  data::Shard part_of(std::uint64_t count) const {
    if (serves()) return {};
    return data::shard_of(count, static_cast<std::uint64_t>(world.rank()),
                          static_cast<std::uint64_t>(sizes.workers));
  }

  config::TrainConfig config;
  const Directory* run = nullptr;  ///< the opened run directory of a run; rank 0 alone writes there
  const comm::World& world;
  Log log;

  /// The ranks of `world` that compute, if others serve; null on a server, and if all compute.
  std::unique_ptr<comm::World> workers;

  data::DatasetInfo info;
  config::Sizes sizes;
  evaluation::Network network;
  std::map<int, model::NetSpec>
      smaller;  ///< the network for each other size of --image-size that a step has; same parameters
  run::Progress progress;        ///< where the run starts; `batches` as of the last checkpoint
  Adopted adopted;               ///< from the checkpoint it starts from
  std::string initialized_from;  ///< for Provenance
  std::string changes;           ///< for Provenance
  std::string self_check;        ///< for Provenance
  int conv_threads = 0;  ///< for BackendOptions, from the first start of the run; 0: this is the first
  int shown_images = 8;  ///< most images of the first part of a batch in a summary
};

/// Checks the options against the dataset, and plans sizes and network for it. Throws Error{usage, data}.
void plan_for(Plan& plan, const data::DatasetInfo& info);

/// The threads of every rank if the user gives none: the smallest fair share, so that all ranks plan the same
/// kernels. Collective.
void resolve_threads(Plan& plan);
/// A sentence on the rank that lost most if other processes took cores that the ranks' threads need; else
/// empty. Collective.
std::string other_work_text(const Plan& plan, const engine::Backend& backend);
/// On the CPU logs the number of threads and its origin and, if steps are left, warns of too few cores or of other
/// processes on them. Collective.
void describe_cores(const Plan& plan, const engine::Backend& backend);

/// Ranks of a host share its GPUs; servers are counted apart.
engine::BackendOptions backend_options(const Plan& plan);

/// The samples of this rank's steps; only for a rank that computes.
data::SampleOrder sample_order(const Plan& plan);

/// Steps between evaluations.
std::uint64_t eval_every(const Plan& plan);

/// The intervals, in steps, of the events that interrupt training, except those due after every replay.
/// `replay` is any replay.
std::vector<std::uint64_t> boundaries(const Plan& plan, const engine::Replay& replay);
/// The first step after `done` from which the run has another program, or the end of the run.
std::uint64_t program_end(const Plan& plan, std::uint64_t done);
/// What the program of a step depends on.
struct StepKind {
  int image_size = 0;           ///< the side of the training images; 0: the network's input
  std::uint64_t frozen_at = 0;  ///< as TrainBinding::after; 0: all trained parameters have gradients
  bool operator==(const StepKind&) const = default;
};
/// The kind of the step after `done`. Only steps that sum gradients leave out those of frozen parameters, and only without
/// --clip-norm, whose norm counts them.
StepKind step_kind(const Plan& plan, std::uint64_t done);
/// The network for these steps.
const model::NetSpec& network_for(const Plan& plan, const StepKind& kind);
/// Floating-point operations of such a step for one image.
model::Flops training_flops(const Plan& plan, const StepKind& kind);
/// Floating-point operations of the whole run, of forward and backward passes.
model::Flops training_flops(const Plan& plan);

/// Whether no log line, evaluation, checkpoint, comparison or other program is due before the end of these
/// steps.
bool is_unbroken(const Plan& plan, const engine::Replay& steps);

/// The checkpoints that the run keeps.
run::Retention retention_of(const config::TrainConfig& config);

/// Whether averagings have a momentum, a row of the table.
bool has_outer_momentum(const config::TrainConfig& config);

/// The rows of the state of a run.
std::vector<optim::StateRow> state_rows(const config::TrainConfig& config);

/// Images of the first part of a batch in a summary.
int kept_images(const Plan& plan);

}  // namespace cifar_mpi::step
