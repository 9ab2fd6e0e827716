#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/state.hpp"

/// How a run goes on from a checkpoint: which one, whether it is of this run, what it settles, and what the
/// user is told of it.
namespace cifar_mpi::train {

/// Where a run starts, on every rank.
struct Start {
  std::vector<run::NamedTensor> model;  ///< in the order of the ParamTable
  std::vector<run::NamedTensor> ema;
  bool resumed = false;  ///< what follows is empty when not
  std::string name;      ///< of the checkpoint, for messages
  run::Progress progress;
  std::string kernels;  ///< the plan the checkpoint was made with
};

/// The newest checkpoint of a run directory that can be read and is of the step its name says; nothing when
/// it holds no file of such a name. Others are reported and left alone. Throws Error{checkpoint} when none of
/// them can be read.
struct FoundCheckpoint {
  std::string path;
  run::Checkpoint content;
};
std::optional<FoundCheckpoint> newest_valid_checkpoint(const std::string& run_dir, const Log& log);

/// Initial values, or the checkpoint that --resume names, checked on rank 0 and sent to all. Collective.
/// Needs config, sizes, info and network; what can be compared without the samples is.
Start find_start(SessionState& state);

/// Takes over what the checkpoint's run had resolved wherever this one's user left it automatic: the
/// precision, and on the same number of ranks the threads and the all-reduce.
void adopt(SessionState& state, const RunFingerprint& resolved);

/// Sums the fingerprints of what the ranks hold, compares the training set with the checkpoint's, and
/// completes `state.progress`. Collective. Needs the samples.
void settle_identity(SessionState& state, const Start& start);

/// Throws Error{checkpoint} naming the first item in which the run of `path` and this one differ, and what to
/// do.
void require_same_run(const RunFingerprint& found, const RunFingerprint& wanted, const std::string& path,
                      const TrainConfig& config, int ranks);

/// One line for each setting that affects bits and is not the checkpoint's.
std::vector<std::string> changed_settings(const RunFingerprint& then, const RunFingerprint& now);
/// The same for the kernel plans, a choice per line; empty when they are equal.
std::string changed_kernels(const std::string& then, const std::string& now);

/// What `--shuffle shard` does to the sample order when the number of ranks changes after `step` steps.
struct ShardChange {
  std::uint64_t whole_pass = 0;  ///< from this pass on (counted from 0) each sample stands once in each
  std::uint64_t step = 0;        ///< after this many steps all ranks are in it
  bool seamless = false;         ///< the change falls between two passes: nothing is repeated or skipped
};
ShardChange shard_change(std::uint64_t samples, std::uint64_t global_batch, std::uint64_t step,
                         int ranks_then, int ranks_now);

/// Everything the user must know about what changed; empty for a new run.
std::vector<std::string> resume_notes(const SessionState& state, const Start& start);

}  // namespace cifar_mpi::train
