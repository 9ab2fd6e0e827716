#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/data/sample_order.hpp"
#include "cifar_mpi/model/param_table.hpp"
#include "cifar_mpi/run/checkpoint.hpp"

/// How a run goes on from a checkpoint: which one, whether it is of this run, and what the user is told of it.
namespace cifar_mpi::run {

/// How a run was asked to start, and what it is.
struct StartRequest {
  const Directory* run = nullptr;   ///< the opened run directory; rank 0's
  std::string resume = "auto";      ///< "auto", "never" or the path of a checkpoint
  std::string data;                 ///< path of the dataset, for messages
  bool global_batch_given = false;  ///< it does not follow the ranks
  RunFingerprint fingerprint;       ///< what can be compared without the samples; see add_dataset_content
  RunFingerprint unrecorded;        ///< what a checkpoint that lacks an item of it stands for
  optim::OptimizerKind optimizer = optim::OptimizerKind::sgd;
  bool outer_momentum = false;  ///< as Checkpoint has it
  std::string init_from;   ///< checkpoint whose weights a new run begins with; empty: with those of its seed
  std::string classifier;  ///< the layer that may then be new; see initialize_from
  int of_a_step = 1;       ///< ranks whose batches make a step
};

/// Where a run starts, on every rank.
struct Start {
  StateTensors state;
  std::string initialized_from;  ///< as Provenance has it
  bool resumed = false;          ///< what follows is empty when not
  std::string name;              ///< of the checkpoint, for messages
  Progress progress;
  std::string kernels;  ///< the plan the checkpoint was made with
};

/// The newest checkpoint of a run directory that can be read and is of the step its name says; nothing when
/// it holds no file of such a name. Damaged ones are reported and left alone. Throws Error{checkpoint} when all are
/// damaged, Error{io} or Error{device} when the system cannot read one or has too little memory for it: nothing is then
/// known of what stands in it, and a run that goes on from an older one would write over it.
struct FoundCheckpoint {
  std::string path;
  Checkpoint content;
};
std::optional<FoundCheckpoint> newest_valid_checkpoint(const Directory& run, const Log& log);

/// `initial` values, or the weights of another run that a new one begins with, or the checkpoint that was asked for,
/// read and checked on rank 0 and sent to all. Collective. Tensors are in the order of `params`. A run that goes on
/// does not look at `init_from`, but is refused (Error{checkpoint}) where it began without one.
Start find_start(const StartRequest& asked, const std::vector<NamedTensor>& initial,
                 const model::ParamTable& params, const comm::World& world, const Log& log);

/// Sums the fingerprints of what the ranks hold (`mine` of this one), adds the total to `asked.fingerprint`,
/// and compares the training set with the checkpoint's. Collective.
void add_dataset_content(StartRequest& asked, std::uint64_t mine, const Start& start,
                         const comm::World& world);

/// Throws Error{checkpoint} naming the first item in which the run of `path` and this one differ, and what to
/// do.
void require_same_run(const RunFingerprint& found, const StartRequest& asked, const std::string& path,
                      int ranks_of_a_step);

/// A setting that affects bits and is not the checkpoint's.
struct ChangedSetting {
  std::string name;
  std::string note;  ///< one line for the user
};
std::vector<ChangedSetting> changed_settings(const RunFingerprint& then, const RunFingerprint& now);
/// The same for the kernel plans, a choice per line; empty when they are equal.
std::string changed_kernels(const std::string& then, const std::string& now);

/// What `--shuffle shard` does to the sample order when the number of ranks changes after `step` steps.
struct ShardChange {
  std::uint64_t whole_epoch = 0;  ///< from this epoch on (counted from 0) each sample stands once in each
  std::uint64_t step = 0;         ///< after this many steps all ranks are in it
  bool seamless = false;          ///< the change falls between two epochs: nothing is repeated or skipped
};
ShardChange shard_change(std::uint64_t samples, std::uint64_t global_batch, std::uint64_t step,
                         int ranks_then, int ranks_now);

/// What a start has come to, as far as a checkpoint's run could be another.
struct StartedRun {
  RunFingerprint resolved;  ///< as Progress has it
  std::string kernels;      ///< as Provenance has it
  bool reproducible = false;
  data::Shuffle shuffle = data::Shuffle::shard;
  std::uint64_t samples = 0;  ///< of the training set
  std::uint64_t global_batch = 0;
  int ranks = 1;
  bool by_worker = false;  ///< each worker's samples go on from its own count of batches
};

/// Everything the user must know about what changed; empty for a new run.
std::vector<std::string> resume_notes(const Start& start, const StartedRun& now);

}  // namespace cifar_mpi::run
