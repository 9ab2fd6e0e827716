#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/run_fingerprint.hpp"
#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/comm/server_update.hpp"
#include "cifar_mpi/config/image_sizes.hpp"
#include "cifar_mpi/data/augment.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/data/sample_order.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/replay.hpp"
#include "cifar_mpi/optim/local_steps.hpp"
#include "cifar_mpi/optim/lookahead.hpp"
#include "cifar_mpi/optim/schedule.hpp"

/// All settings of a training run; the defaults are the tutorial's.
namespace cifar_mpi::config {

/// The most samples that a rank computes at once.
inline constexpr int kLargestBatch = 1 << 20;
/// Limits of `bucket_mib`; smaller buckets cost mostly message overhead.
inline constexpr double kLeastBucketMib = 1.0 / 1024;
inline constexpr double kMostBucketMib = 4096.0;
/// Most `graph_steps`: the device holds the records of two launches.
inline constexpr int kMostGraphSteps = engine::kRecordRing / 2;
/// Default: every second launch ends with a log line.
inline constexpr int kUsualGraphSteps = 5;

/// Whether a GPU is checked against the CPU before it trains; only: the program does nothing else.
enum class SelfCheckMode : std::uint8_t { on, off, only };
constexpr auto names_of(SelfCheckMode) {
  return std::to_array<Name<SelfCheckMode>>(
      {{"on", SelfCheckMode::on}, {"off", SelfCheckMode::off}, {"only", SelfCheckMode::only}});
}

/// Steps as log lines count them, including the last; `first` = 0: none.
struct TraceWindow {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};
inline constexpr std::uint64_t kMostTracedSteps = 1000;
/// "1000-1009", or "none".
std::string describe(const TraceWindow& window);

struct TrainConfig {
  std::string data;  ///< path of the dataset file; already searched for, never empty
  std::string run_dir = "runs/tutorial";
  std::string resume = "auto";  ///< "auto", "never" or the path of a checkpoint
  std::string init_from;        ///< checkpoint whose weights a new run begins with; empty: none

  std::vector<std::string> allow_change;  ///< options that may differ from the resumed run's

  std::string model = "tutorial";
  std::string device = "auto";
  std::string isa = "auto";  ///< widest instructions of the CPU: a name of cpu::InstructionSet
  SelfCheckMode self_check = SelfCheckMode::on;  ///< of a GPU
  int threads = 0;                               ///< 0: this rank's fair share of its cores
  engine::Precision precision = engine::Precision::automatic;
  engine::ConvMethod conv = engine::ConvMethod::automatic;
  engine::RunnerKind runner = engine::RunnerKind::automatic;
  int graph_steps = 0;  ///< per launch; only its last step can be logged, evaluated or saved; 0: automatic

  int batch_size = 128;           ///< samples that a rank computes at once
  int accumulate = 1;             ///< batches of a rank per step
  std::int64_t global_batch = 0;  ///< samples per step over all ranks; 0: batch_size · accumulate · ranks
  std::int64_t steps = 0;         ///< 0: from `epochs`
  double epochs = 256.0;
  std::uint64_t seed = 1;

  optim::OptimizerSpec optimizer;
  double clip_norm = 0.0;  ///< upper limit of the summed gradient's norm; 0: no clipping
  double lr = 0.1;
  optim::ScheduleKind schedule = optim::ScheduleKind::staircase;
  double lr_decay_factor = 0.1;
  double epochs_per_decay = 350.0;
  std::vector<double> decay_at;  ///< fractions of the run
  double initial_lr_share = 0.04;
  double final_lr_share = 0.0;
  optim::LrScaling lr_scaling = optim::LrScaling::none;
  double warmup_epochs = 0.0;
  double weight_decay = 0.004;
  double label_smoothing = 0.0;  ///< share of each training target that is spread over all classes
  double ema_decay = 0.9999;
  int lookahead = 0;                 ///< steps between pulls to the slow weights; 0: no lookahead
  double lookahead_keep = 0.7738;    ///< of the slow weights in the last pull; for lookahead, as the next two
  double lookahead_power = 3.0;      ///< of the elapsed part of the run, which multiplies it
  std::int64_t lookahead_steps = 0;  ///< last steps of the decay in which there are pulls; 0: all
  double tail_epochs = 0.0;          ///< at the end, at the last rate; their weights are averaged

  data::Augment augment = data::Augment::tutorial;
  int input_size =
      0;  ///< pixels of the network's input in each direction; 0: 24, the whole image with Augment::crop
  std::vector<ImageSize> image_sizes;  ///< one after another, the last to the end; empty: the network's input
  int crop_pad = 4;                    ///< for Augment::crop, as the next two
  data::Fill crop_fill = data::Fill::zeros;
  int cutout = 0;
  double brightness = 0.0;  ///< for Augment::crop with Normalize::dataset, as the next
  double contrast = 0.0;
  data::Flip flip = data::Flip::random;
  data::Normalize normalize = data::Normalize::image;
  data::Shuffle shuffle = data::Shuffle::shard;

  comm::UpdateKind update = comm::UpdateKind::all_reduce;
  int servers = 1;                ///< for UpdateKind::server: the last ranks
  comm::Aggregation aggregation;  ///< for UpdateKind::server
  optim::LocalSteps local;        ///< for UpdateKind::local
  std::string all_reduce = "auto";
  std::string nccl_algorithm = "auto";  ///< ring, tree or auto; on CUDA
  bool nccl_nvls = false;   ///< NCCL may sum in NVLink switches, whose sums differ from run to run
  bool share_gpus = false;  ///< several ranks may have one GPU; for tests
  /// Gradients are summed in spans of at least this many MiB. With the tutorial's model, 1 gives two spans:
  /// softmax_linear, local4 and local3 (90 % of the bytes, ready before the convolutions' backward begins),
  /// then conv2 and conv1.
  double bucket_mib = 1.0;
  /// Reproducible for any number of ranks: the global batch is computed in `micro_shards` pieces, which are
  /// added in one fixed binary tree.
  bool reproducible = false;
  int micro_shards = 8;
  bool sync_batch_norm = false;  ///< BatchNorm over the samples that all ranks compute at once, not one alone
  comm::Overlap overlap = comm::Overlap::automatic;     ///< sum buckets during backward
  comm::Share share_matrices = comm::Share::automatic;  ///< compute each hidden matrix of muon on one rank
  bool side_lane = true;                                ///< run independent branches of backward concurrently
  comm::Wire wire = comm::Wire::fp32;                   ///< gradient format on the network

  std::int64_t log_every = 10;       ///< steps
  bool show_kernels = false;         ///< the log begins with the kernels of each layer
  bool tensorboard = true;           ///< event files in the run directory
  TraceWindow trace;                 ///< steps whose tasks are written to the run directory
  std::int64_t summary_every = 100;  ///< steps between histograms; 0: none
  double eval_every = 0.0;           ///< epochs; 0: only at the end
  std::int64_t patience = 0;         ///< evaluations without a better one, after which the run ends; 0: any
  int views = 1;                     ///< of each test image: 1, 2 or 6
  std::int64_t checkpoint_every = 1000;  ///< steps
  double checkpoint_minutes = 10.0;      ///< at most, between checkpoints; 0: only by steps
  std::int64_t check_every = 500;        ///< steps between comparisons of the ranks' parameters
  int keep = 5;                          ///< checkpoints kept
  std::int64_t keep_every = 0;           ///< also keep those of steps divisible by this; 0: off
  bool keep_best = false;                ///< also keep the one of the best test accuracy

  double timeout_s = 120.0;     ///< without progress before the job is ended; 0: never
  double stop_after_min = 0.0;  ///< of training before the run stops with a checkpoint; 0: never

  std::string text;  ///< the whole configuration as TOML, for the checkpoint's provenance
};

/// The sizes that follow from a configuration, the ranks and the dataset.
struct Sizes {
  int workers = 1;     ///< ranks that compute gradients: the first ones; the others serve
  int aggregated = 1;  ///< workers whose gradients make an update
  int parts = 1;       ///< pieces in which a rank computes its batch: batches of a step, or micro-shards
  int batch = 0;       ///< samples per worker and step
  std::uint64_t global_batch = 0;  ///< batch · aggregated: a step's gradient is the mean over these
  std::uint64_t total_steps = 0;
  double steps_per_epoch = 0.0;  ///< N / G
  /// A replay of the step program takes one step; from step `local_from` on it takes `local_steps`, all
  /// between two averagings. `total_steps` is the end of a replay.
  std::uint64_t local_from = 0;
  int local_steps = 1;
  /// In order, the first from step 0 on; all begin within the run. Empty: all steps have images of the network's input.
  std::vector<ImageStage> image_stages;

  /// Whether steps may be made without this worker: a replay then ends with the last of them.
  bool partial_aggregation() const { return aggregated < workers; }
  /// The replay that begins after `done` steps, and the one that ends there, which is empty at the start.
  engine::Replay replay_after(std::uint64_t done) const {
    return {done, done + (done < local_from ? 1 : static_cast<std::uint64_t>(local_steps))};
  }
  engine::Replay replay_before(std::uint64_t done) const {
    if (done == 0) return {};
    return {done - (done <= local_from ? 1 : static_cast<std::uint64_t>(local_steps)), done};
  }
};

/// Checks that need no file. Throws Error{usage} naming the option and the value.
void check(const TrainConfig& config);

/// The ranks that compute. Throws Error{usage} when all of them are servers.
int count_workers(const TrainConfig& config, int ranks);

/// Throws Error{usage} when the servers or the batches do not fit the ranks, or an image size does not fit the network's
/// input, Error{data} when the dataset is too small for the ranks.
Sizes resolve_sizes(const TrainConfig& config, int ranks, const data::DatasetInfo& dataset);

/// The option with which each step depends on the run's length, such as "--lookahead 5". Empty: the length of a
/// resumed run may change.
std::string length_dependence(const TrainConfig& config);

/// The learning-rate schedule of a run.
optim::ScheduleSpec schedule_spec(const TrainConfig& config, const Sizes& sizes, std::uint64_t train_samples);

/// The average that evaluation uses: the mean over the tail, where there is one.
optim::AverageRule average_rule(const TrainConfig& config, const Sizes& sizes, std::uint64_t train_samples);

/// Its pulls end where the tail begins. Throws Error{usage} if they would begin before the run.
optim::Lookahead lookahead_rule(const TrainConfig& config, const Sizes& sizes, std::uint64_t train_samples);

/// How images of a dataset become the network's input, without the training set's mean and deviation:
/// `find_dataset_moments` adds them.
data::AugmentSpec augment_spec(const TrainConfig& config, const Extent& image);

/// The settings that identify a run, by option: a checkpoint is resumed only if all are equal. The number of
/// ranks is not among them.
RunFingerprint run_fingerprint(const TrainConfig& config, const Sizes& sizes,
                               const data::DatasetInfo& dataset);

/// Values that a checkpoint implies if its fingerprint lacks the option.
RunFingerprint unrecorded_fingerprint();

}  // namespace cifar_mpi::config
