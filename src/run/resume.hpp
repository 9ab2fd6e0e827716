#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/data/sample_order.hpp"
#include "cifar_mpi/model/param_table.hpp"
#include "cifar_mpi/run/checkpoint.hpp"

/// Resumes a run: finds its checkpoint, checks that it belongs to this run, and lists what changed.
namespace cifar_mpi::run {

/// The options of a start, and the identity of the run.
struct StartRequest {
  const Directory* run = nullptr;   ///< the opened run directory; rank 0's
  std::string resume = "auto";      ///< "auto", "never" or the path of a checkpoint
  std::string data;                 ///< path of the dataset, for messages
  bool global_batch_given = false;  ///< so it does not depend on the number of ranks
  RunFingerprint fingerprint;       ///< what can be compared without the samples; see add_dataset_content
  RunFingerprint unrecorded;        ///< the values of items that an older checkpoint lacks
  optim::OptimizerKind optimizer = optim::OptimizerKind::sgd;
  bool outer_momentum = false;  ///< as Checkpoint has it
  bool slow = false;            ///< as Checkpoint has it
  std::string init_from;   ///< checkpoint whose weights a new run begins with; empty: weights of its seed
  std::string classifier;  ///< the layer that may then be new; see initialize_from
  std::vector<std::string> may_differ;  ///< items of `fingerprint` that --allow-change names
  std::vector<std::string> changeable;  ///< items that --allow-change could name
  int of_a_step = 1;                    ///< the number of ranks whose batches form a step
};

/// Where a run starts, on every rank.
struct Start {
  StateTensors state;
  std::string initialized_from;  ///< as Provenance has it
  bool resumed = false;          ///< if not, the following is empty
  std::string changed;           ///< by --allow-change at this start: "--lr 0.1 -> 0.01"
  std::string changes;           ///< as Provenance has it, with `changed`
  std::string name;              ///< of the checkpoint, for messages
  Progress progress;
  std::string kernels;  ///< the plan the checkpoint was made with
  int views = 1;        ///< as Provenance has it; rank 0's
};

/// The newest checkpoint of a run directory that can be read and whose step is that in its name; empty if there
/// is no checkpoint file. Damaged ones are reported and left alone. Throws Error{checkpoint} when all are
/// damaged, Error{io} or Error{device} when the system cannot read one or has too little memory for it: that
/// file may be good, and a run resumed from an older one would overwrite it.
struct FoundCheckpoint {
  std::string path;
  Checkpoint content;
};
std::optional<FoundCheckpoint> newest_valid_checkpoint(const Directory& run, const Log& log);
/// The same for a path that the user typed, as open_checkpoint takes it. Also throws Error{checkpoint} if
/// there is none.
FoundCheckpoint read_asked_checkpoint(const std::string& path, const Log& log);

/// For a new run that begins with the weights of another one.
///
/// Replaces the values of `initial`, tensors in the order of `params`, with the averages of the checkpoint at
/// `path` and the running statistics that belong to them, with which its test accuracy was measured. Names
/// and shapes must match; the model's name need not.
///
/// The layer `classifier` may have another number of classes, the last extent of its tensors; then its
/// tensors keep their initial values. An empty name: no layer may differ.
///
/// Returns a description for the checkpoint and the log, without folders: "step_000000781.h5, step 781, test
/// accuracy 59.50 %, content hash 0123456789abcdef". Throws Error{checkpoint} as `read_checkpoint` does, and
/// naming the first tensor, in forward order, that differs; `initial` is then unchanged.
std::string initialize_from(const std::string& path, const model::ParamTable& params,
                            std::string_view classifier, std::vector<NamedTensor>& initial,
                            const Log& log = Log());

/// For a new run, what `initial` returns or the weights of another run; else the requested checkpoint, which
/// rank 0 reads, checks and sends to all. Collective, and calls `initial` on all ranks or none. Tensors are in the order of
/// `params`. A resumed run does not read `init_from`, but throws Error{checkpoint} if it began without one.
Start find_start(const StartRequest& asked, const std::function<std::vector<NamedTensor>()>& initial,
                 const model::ParamTable& params, const comm::World& world, const Log& log);

/// Sums the fingerprints of the samples that the ranks hold (`mine` of this one), adds the total to
/// `asked.fingerprint`, and compares the training set with the checkpoint's. Collective.
void add_dataset_content(StartRequest& asked, std::uint64_t mine, const Start& start,
                         const comm::World& world);

/// Throws Error{checkpoint} naming the first item in which this run may not differ from the run of `path` but
/// does, and a remedy. Returns the other differences, "--lr 0.1 -> 0.01, --eps ...".
std::string require_same_run(const RunFingerprint& found, const StartRequest& asked, const std::string& path,
                             int ranks_of_a_step);

/// A setting that affects bits and differs from the checkpoint's.
struct ChangedSetting {
  std::string name;
  std::string note;  ///< one line for the user
};
std::vector<ChangedSetting> changed_settings(const RunFingerprint& then, const RunFingerprint& now);
/// The same for the kernel plans, one choice per line; empty if they are equal. A size of images that only one of them
/// has counts as equal: the other run does not reach it.
std::string changed_kernels(const std::string& then, const std::string& now);

/// The effect on the sample order of `--shuffle shard` when the number of ranks changes after `step` steps.
struct ShardChange {
  std::uint64_t whole_epoch = 0;  ///< from this epoch on (counted from 0) each epoch has each sample once
  std::uint64_t step = 0;         ///< after this many steps all ranks are in it
  bool seamless = false;          ///< the change falls between two epochs: nothing is repeated or skipped
};
ShardChange shard_change(std::uint64_t samples, std::uint64_t global_batch, std::uint64_t step,
                         int ranks_then, int ranks_now);

/// The properties of a started run that may differ from those of the checkpoint's run.
struct StartedRun {
  RunFingerprint resolved;  ///< as Progress has it
  std::string kernels;      ///< as Provenance has it
  bool reproducible = false;
  data::Shuffle shuffle = data::Shuffle::shard;
  std::uint64_t samples = 0;  ///< of the training set
  std::uint64_t global_batch = 0;
  int ranks = 1;
  bool by_worker = false;             ///< each worker's samples continue from its own count of batches
  int views = 1;                      ///< of each test image
  bool compares_evaluations = false;  ///< --patience or --keep-best
};

/// Notes to the user about what changed; empty for a new run.
std::vector<std::string> resume_notes(const Start& start, const StartedRun& now);

}  // namespace cifar_mpi::run
