#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "cifar_mpi/train/config.hpp"
#include "cifar_mpi/train/network.hpp"

namespace cifar_mpi::train {

/// Settings adopted from the checkpoint because the user left them automatic.
struct Adopted {
  bool precision = false;
  bool conv = false;
  bool all_reduce = false;
};

/// What was planned on a rank before memory is allocated: the options as resolved, the ranks, the data and the network, and
/// where the run starts.
struct Plan {
  Plan(TrainConfig chosen, const comm::World& the_world, const Log& the_log)
      : config(std::move(chosen)), world(the_world), log(the_log) {
    sizes.workers = world.size();
  }

  /// Whether this rank holds weights for others and computes no gradients.
  bool serves() const { return world.rank() >= sizes.workers; }
  /// The ranks that compute.
  const comm::World& computing() const { return workers ? *workers : world; }
  /// This rank's part of so many samples: a server has none.
  data::Shard part_of(std::uint64_t count) const {
    if (serves()) return {};
    return data::shard_of(count, static_cast<std::uint64_t>(world.rank()),
                          static_cast<std::uint64_t>(sizes.workers));
  }

  TrainConfig config;
  const Directory* run = nullptr;  ///< the opened run directory of a run; rank 0 alone writes there
  const comm::World& world;
  Log log;

  /// Those of `world` that compute, where others serve; null on a server, and where all compute.
  std::unique_ptr<comm::World> workers;

  data::DatasetInfo info;
  Sizes sizes;
  Network network;
  run::Progress progress;        ///< where the run starts; `batches` as of the last checkpoint
  Adopted adopted;               ///< from the checkpoint it starts from
  std::string initialized_from;  ///< of Provenance
  std::string changes;           ///< likewise
  std::string self_check;        ///< likewise
  int conv_threads = 0;          ///< of BackendOptions, from the first start of the run; 0: this is it
  int shown_images = 8;          ///< of the first part of a batch a summary shows so many at most
};

/// Checks the options against the dataset, and plans sizes and network for it. Throws Error{usage, data}.
void plan_for(Plan& plan, const data::DatasetInfo& info);

/// The threads of every rank when the user leaves them open: the smallest fair share, so that all ranks plan
/// the same kernels. Collective.
void resolve_threads(Plan& plan);
/// Whether other processes took cores that the ranks' threads need, in a sentence, of the rank that lost most; empty: none did.
/// Collective.
std::string other_work_text(const Plan& plan, const engine::Backend& backend);
/// Says on the CPU how many threads there are and what they were chosen from, and warns where there are more than cores, or other
/// processes on these. Collective.
void describe_cores(const Plan& plan, const engine::Backend& backend);

/// Ranks of a host share its GPUs, those that serve apart.
engine::BackendOptions backend_options(const Plan& plan);

/// The samples of this rank's steps; of a rank that computes.
data::SampleOrder sample_order(const Plan& plan);

/// Steps between evaluations.
std::uint64_t eval_every(const Plan& plan);

/// Every so many steps there is more to do than to go on. What is due after each replay tells none from the
/// others; `replay` is one of them.
std::vector<std::uint64_t> boundaries(const Plan& plan, const engine::Replay& replay);
/// Whether no log line, evaluation, checkpoint or comparison, nor another program, is due before the end of these steps.
bool is_unbroken(const Plan& plan, const engine::Replay& steps);

/// Which checkpoints the run keeps.
run::Retention retention_of(const TrainConfig& config);

/// Whether averagings have a momentum, a row of the table.
bool has_outer_momentum(const TrainConfig& config);

/// How many images of the first part of a batch a summary shows.
int kept_images(const Plan& plan);

}  // namespace cifar_mpi::train
