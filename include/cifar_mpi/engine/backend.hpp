#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/data/augment.hpp"
#include "cifar_mpi/data/sample_order.hpp"
#include "cifar_mpi/engine/kernels.hpp"
#include "cifar_mpi/engine/layout.hpp"
#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/engine/runner.hpp"
#include "cifar_mpi/engine/value_counts.hpp"
#include "cifar_mpi/model/net_spec.hpp"
#include "cifar_mpi/model/param_table.hpp"
#include "cifar_mpi/optim/lookahead.hpp"
#include "cifar_mpi/optim/schedule.hpp"
#include "cifar_mpi/optim/state.hpp"

/// The seam between a run and its device. A backend plans layers into tasks, at build time only.
namespace cifar_mpi::engine {

/// Arithmetic of activations and compute copies; master weights, gradients and the all-reduce are always
/// fp32.
enum class Precision : std::uint8_t { automatic, fp32, tf32, bf16 };
constexpr auto names_of(Precision) {
  return std::to_array<Name<Precision>>({{"auto", Precision::automatic},
                                         {"fp32", Precision::fp32},
                                         {"tf32", Precision::tf32},
                                         {"bf16", Precision::bf16}});
}

/// How convolutions are computed. automatic: a rule decides for each layer; fft and winograd: this way where it
/// exists, else the rule.
enum class ConvMethod : std::uint8_t { automatic, direct, fft, winograd };
constexpr auto names_of(ConvMethod) {
  return std::to_array<Name<ConvMethod>>({{"auto", ConvMethod::automatic},
                                          {"direct", ConvMethod::direct},
                                          {"fft", ConvMethod::fft},
                                          {"winograd", ConvMethod::winograd}});
}

struct BackendOptions {
  int threads = 1;              ///< CPU threads of this rank
  bool oversubscribed = false;  ///< more ranks than cores: yield while waiting
  int local_rank = 0;           ///< among the ranks of this host; chooses the GPU
  int local_ranks = 1;
  bool share_gpus = false;              ///< ranks may share a GPU; for tests
  std::string nccl_algorithm = "auto";  ///< ring, tree or auto
  bool nccl_nvls = false;               ///< NCCL may sum in NVLink switches
  bool serves = false;                  ///< this rank is a parameter server: it takes no GPU
  int conv_threads = 0;  ///< CPU threads for which convolution methods are chosen; 0: `threads`
};

/// Images as they came from the file, resident in backend memory.
struct DataView {
  const std::uint8_t* images = nullptr;  ///< [count, h, w, c]
  const std::uint8_t* labels = nullptr;  ///< [count]
  std::uint64_t count = 0;
};

/// The network and batch of a tower; the values that it points to outlive the tower.
struct TowerSpec {
  const model::NetSpec* net = nullptr;
  const model::ParamTable* params = nullptr;
  int batch = 0;  ///< samples per rank and step
  Precision precision = Precision::fp32;
  ConvMethod conv = ConvMethod::automatic;
  /// The kernels of the same layers and backend for images of another size: all parameters lie in memory as theirs. Null:
  /// as is fastest.
  const Kernels* like = nullptr;
};

/// The data of a training step's tasks. Pointers are backend memory and outlive the program.
struct TrainBinding {
  const float* params = nullptr;  ///< [layout.floats]
  float* grads =
      nullptr;  ///< [layout.floats]; overwritten in every step but for those that `after` leaves out
  /// The program is for steps after this many completed ones. It writes no gradient of a parameter that trains in at most
  /// so many steps (model::Param::steps).
  std::uint64_t after = 0;
  float* control = nullptr;  ///< ControlLayout; precedes grads in the same buffer
  ControlLayout control_layout;
  int rank = 0;
  std::uint64_t* step = nullptr;  ///< the step counter
  RankFacts* facts = nullptr;     ///< [1]; null: this rank's slot stays zero
  DataView data;                  ///< the samples that `order` assigns to this rank
  data::SampleOrder order;
  data::AugmentSpec augment;
  std::uint64_t seed = 0;          ///< of the augmentation
  int part = 0;                    ///< index of this part of the replay
  int parts = 1;                   ///< parts of a replay; the first carries the rank's facts and stop word
  std::uint64_t first_sample = 0;  ///< where the part begins in the rank's batch of that step
  float statistics_share = 1.0f;   ///< weight of the part in the batch's statistics
  RankSums rank_sums;  ///< of the layers that normalize over the samples that all ranks compute at once
  std::uint64_t global_batch = 0;  ///< the loss task scales its gradient by 1/global_batch
  double label_smoothing = 0.0;    ///< E of the target (1 − E)·onehot + E/classes
  /// Bits of Request in host memory: the only word that may change after a program is finalized.
  const std::atomic<int>* requests = nullptr;
  /// Where observers store counts of the batch, or of its first part: [layers of Tower::observed]; null: no
  /// observers.
  ValueCounts* activations = nullptr;
  float* kept_images = nullptr;  ///< [kept, h, w, c]: the first images, as the network sees them
  int kept = 0;

  /// Facts and requests are summed over the parts, so only the first part has them.
  RankFacts* own_facts() const { return part == 0 ? facts : nullptr; }
  const std::atomic<int>* own_requests() const { return part == 0 ? requests : nullptr; }
};

/// The update of the floats [begin, end) of the blocks, multiples of 16; they may begin and end inside a parameter.
struct UpdateBinding {
  float* params = nullptr;
  const float* grads = nullptr;
  float* ema = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
  const float* control = nullptr;
  const std::uint64_t* step = nullptr;
  /// Receives Σ weight_decay · ½‖w‖² of these parameters, before the update; zero if the optimizer's decay is
  /// not part of the loss.
  double* decay_sum = nullptr;
  optim::ScheduleSpec schedule;
  optim::AverageRule average;
  optim::OptimizerSpec optimizer;
  /// The optimizer's state blocks in the order of optim::state_rows; null after the last.
  float* states[optim::kMostOptimizerRows] = {};
  /// With muon: a block with the moves of the hidden matrices (√max(1, out/rest) · X), which matrix_tasks write and
  /// the update subtracts.
  float* moves = nullptr;
  /// The average moves for this many steps from *step on. 0: a local step of this rank alone. The average
  /// then stays unchanged, and the update applies even if the loss or the norm is not finite: the averaging
  /// step checks both.
  int average_steps = 1;
  double clip_norm = 0.0;  ///< 0: gradients are not clipped
  /// Divides the rate by max(1, staleness) of the control block; only for servers, which run on the CPU.
  bool divides_by_staleness = false;
  const double* gradient_norm = nullptr;  ///< null: not computed; not finite: the update does not apply
};

/// A weight matrix whose update muon orthogonalizes (optim::NewtonSchulz). In logical order it is [rest, out], row
/// major, with `rest` = height · width · in for a convolution.
struct Matrix {
  std::string name;
  std::size_t begin = 0;  ///< its span of the flat blocks, as in ParamLayout
  std::size_t floats = 0;
  std::int64_t rest = 0;
  std::int64_t out = 0;
  const std::uint32_t* places =
      nullptr;  ///< [rest, out]: where each element is, from `begin` on; backend memory
};

/// The norm of the summed gradient, for UpdateBinding and AdvanceBinding.
struct GradientNormBinding {
  const float* grads = nullptr;
  std::size_t floats = 0;  ///< of all trained parameters
  double* norm = nullptr;  ///< [1]
};

/// Update of the running statistics in a step: all running parameters of the layout, in `params`, and their
/// averages in `ema` (formulas in optim/step_math.hpp). It applies if the parameter update does.
struct RunningBinding {
  float* params = nullptr;  ///< [layout.floats]
  float* ema = nullptr;     ///< [layout.floats]
  const float* control = nullptr;
  ControlLayout control_layout;
  const std::uint64_t* step = nullptr;
  optim::AverageRule average;
  int average_steps = 1;  ///< as in UpdateBinding, like gradient_norm
  const double* gradient_norm = nullptr;
};

/// Lookahead at the end of a step, on whole blocks. It applies if the parameter update does.
struct LookaheadBinding {
  float* params = nullptr;
  float* slow = nullptr;
  float* ema = nullptr;
  std::size_t floats = 0;  ///< of the layout
  optim::Lookahead rule;
  optim::AverageRule average;
  const float* control = nullptr;
  const std::uint64_t* step = nullptr;
  const double* gradient_norm = nullptr;  ///< as in UpdateBinding
};

/// The end of a step: writes the record for the host, and advances the step counter if the loss (with its
/// decay term, which overflows with the weights) and the gradient norm, where known, are finite.
struct AdvanceBinding {
  const float* control = nullptr;
  ControlLayout control_layout;
  std::uint64_t global_batch = 0;
  std::span<const double> decay_sums;
  std::uint64_t* step = nullptr;
  const double* gradient_norm = nullptr;  ///< null: gradients are not clipped
  /// Steps of a replay. `step` points to as many counters, one for each; the record describes the last step.
  int steps = 1;
};

/// Values of an fp32 block to count.
struct CountBinding {
  const float* values = nullptr;
  std::vector<ValueRun> runs;
  ValueCounts* counts = nullptr;
};

/// dst[i] = share · (a[i] + sign · b[i]) for i < floats, or share · a[i] where b is null; dst may be a or b.
struct SumBinding {
  float* dst = nullptr;
  const float* a = nullptr;
  const float* b = nullptr;
  std::size_t floats = 0;
  float share = 1.0f;
  float sign = 1.0f;  ///< 1 or −1
};

/// Bytes to copy between host and device memory, or within either.
struct CopyBinding {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  std::size_t bytes = 0;
};

/// Evaluation of one batch: samples [cursor, cursor + batch) of `data`, padded with label 255 after its end.
struct EvaluateBinding {
  const float* params = nullptr;  ///< the block to evaluate, raw or EMA
  DataView data;
  data::AugmentSpec augment;            ///< kind none
  std::uint64_t* cursor = nullptr;      ///< advances by `batch` in every replay
  std::uint8_t* predictions = nullptr;  ///< [batch]; the class with the largest logit, the first of equals
  float* loss_sum = nullptr;  ///< [1]; cross-entropy summed over the samples that count, not divided
  float* logits = nullptr;    ///< [batch, classes] fp32, or null to leave them out
};

/// A device with its memory, kernels and runners.
class Backend {
 public:
  virtual ~Backend() = default;

  /// "cpu: AMD EPYC, AVX-512 + bf16, oneDNN 2.6.3, 1 thread"
  virtual std::string description() const = 0;
  /// Resolves `automatic`; throws Error{device} for a precision that this device lacks.
  virtual Precision resolve(Precision precision) const = 0;
  /// Zeroed memory of this device, 64-byte aligned.
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// Zeroed host memory, 64-byte aligned, for messages; copy_task reads and writes it directly.
  virtual Buffer allocate_pinned(std::size_t bytes) = 0;
  /// Copies between host and this device's memory, in either direction; returns when done.
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  /// The kernels for a network; lower::Tower builds programs from them.
  virtual TowerKernels plan(const TowerSpec& spec) = 0;
  /// The optimizer and EMA of one span, and the end of the step; `records` (host-readable) has kRecordRing
  /// entries.
  virtual Task update_task(const UpdateBinding& binding, const model::ParamTable& params,
                           const ParamLayout& layout) = 0;
  /// With muon: the tasks that turn the gradient of one matrix into its move, to run in order before the update of
  /// its span. `update` is that of any span; scratch comes from `arena`. The bits depend on the matrix alone, and on
  /// the CPU also on the number of threads.
  virtual std::vector<Task> matrix_tasks(const UpdateBinding& update, const Matrix& matrix, Arena& arena) = 0;
  /// norm = √Σ grads², summed in double in an order that depends only on the length.
  virtual Task gradient_norm_task(const GradientNormBinding& binding) = 0;
  virtual Task running_task(const RunningBinding& binding, const model::ParamTable& params,
                            const ParamLayout& layout) = 0;
  virtual Task lookahead_task(const LookaheadBinding& binding) = 0;
  virtual Task advance_task(const AdvanceBinding& binding, std::vector<StepRecord>& records) = 0;
  /// Counts the values of each binding (see ValueCounts), with the same result on every device.
  virtual Task count_task(std::string name, const std::vector<CountBinding>& bindings) = 0;
  virtual Task sum_task(std::string name, const SumBinding& binding) = 0;
  /// All copies at once; host memory must come from allocate_pinned.
  virtual Task copy_task(std::string name, const std::vector<CopyBinding>& bindings) = 0;
  /// ++*counter, in this device's memory.
  virtual Task increment_task(std::string name, std::uint64_t* counter) = 0;
  virtual std::unique_ptr<Runner> runner(StepProgram program, RunnerKind kind,
                                         std::vector<Bytes> regions) = 0;
};

}  // namespace cifar_mpi::engine
