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
#include "cifar_mpi/optim/schedule.hpp"
#include "cifar_mpi/optim/state.hpp"

/// The seam between a run and the device it runs on. A backend is asked to plan layers into tasks, at build
/// time only.
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

/// How convolutions are computed; automatic: by a rule for each layer; fft: so where that exists, else by the rule.
enum class ConvMethod : std::uint8_t { automatic, direct, fft };
constexpr auto names_of(ConvMethod) {
  return std::to_array<Name<ConvMethod>>(
      {{"auto", ConvMethod::automatic}, {"direct", ConvMethod::direct}, {"fft", ConvMethod::fft}});
}

struct BackendOptions {
  int threads = 1;              ///< CPU threads of this rank
  bool oversubscribed = false;  ///< more ranks than cores: give way while waiting
  int local_rank = 0;           ///< among the ranks of this host; chooses the GPU
  int local_ranks = 1;
  bool share_gpus = false;              ///< ranks may share a GPU; for tests
  std::string nccl_algorithm = "auto";  ///< ring, tree or auto
  bool nccl_nvls = false;               ///< NCCL may sum in NVLink switches
  bool serves = false;                  ///< holds weights for others, who compute: takes no GPU
  int conv_threads = 0;  ///< CPU threads for which convolution methods are chosen; 0: `threads`
};

/// Images as they came from the file, resident in backend memory.
struct DataView {
  const std::uint8_t* images = nullptr;  ///< [count, h, w, c]
  const std::uint8_t* labels = nullptr;  ///< [count]
  std::uint64_t count = 0;
};

/// Which network a tower is, for which batch; the pointed-to values outlive the tower.
struct TowerSpec {
  const model::NetSpec* net = nullptr;
  const model::ParamTable* params = nullptr;
  int batch = 0;  ///< samples per rank and step
  Precision precision = Precision::fp32;
  ConvMethod conv = ConvMethod::automatic;
};

/// What the tasks of a training step work on. Pointers are backend memory and outlive the program.
struct TrainBinding {
  const float* params = nullptr;  ///< [layout.floats]
  float* grads = nullptr;    ///< [layout.floats]; overwritten in every step, never read from the step before
  float* control = nullptr;  ///< ControlLayout; stands before grads in the same buffer
  ControlLayout control_layout;
  int rank = 0;
  std::uint64_t* step = nullptr;  ///< the step counter
  RankFacts* facts = nullptr;     ///< [1]; null: the slot of this rank stays zero
  DataView data;                  ///< the samples that `order` says this rank holds
  data::SampleOrder order;
  data::AugmentSpec augment;
  std::uint64_t seed = 0;          ///< of the augmentation
  int part = 0;                    ///< the tasks are one of this replay's …
  int parts = 1;                   ///< … this many parts; the first carries the rank's facts and stop word
  std::uint64_t first_sample = 0;  ///< the part takes those from here on of the rank's batch in that step
  float statistics_share = 1.0f;   ///< of the part in the batch's statistics
  std::uint64_t global_batch = 0;  ///< the loss task scales its gradient by 1/global_batch
  double label_smoothing = 0.0;    ///< E of the target (1 − E)·onehot + E/classes
  /// Bits of Request in host memory: the one word that may change under a finalized program.
  const std::atomic<int>* requests = nullptr;
  /// What observers leave of the batch, or of its first part: [layers of Tower::observed]; null: there are none.
  ValueCounts* activations = nullptr;
  float* kept_images = nullptr;  ///< [kept, h, w, c]: its first images, as the network sees them
  int kept = 0;

  /// Only one part of a batch may hold what the parts sum up.
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
  /// Receives Σ weight_decay · ½‖w‖² of these parameters, before the update; zero where the optimizer's decay
  /// is no part of the loss.
  double* decay_sum = nullptr;
  optim::ScheduleSpec schedule;
  double ema_decay = 0.9999;
  optim::OptimizerSpec optimizer;
  /// The blocks that the optimizer's rule keeps, as optim::state_rows has them; null behind its last.
  float* states[optim::kMostOptimizerRows] = {};
  /// For how many steps, from *step on, the average moves. 0: a local step, of this rank alone. The average then
  /// stays as it is, and the update applies whatever the loss and the norm are: who averages the ranks finds that.
  int average_steps = 1;
  double clip_norm = 0.0;  ///< 0: gradients are not clipped
  /// Divides the rate by max(1, staleness) of the control block; for servers, which are hosts: on the CPU alone.
  bool divides_by_staleness = false;
  const double* gradient_norm = nullptr;  ///< where they are; not finite: the update does not apply
};

/// The norm of the summed gradient, for UpdateBinding and AdvanceBinding.
struct GradientNormBinding {
  const float* grads = nullptr;
  std::size_t floats = 0;  ///< of all trained parameters
  double* norm = nullptr;  ///< [1]
};

/// How the running statistics move in a step: all of the layout's running parameters, in `params` and their
/// averages in `ema` (formulas in optim/step_math.hpp). It applies when the update does.
struct RunningBinding {
  float* params = nullptr;  ///< [layout.floats]
  float* ema = nullptr;     ///< likewise
  const float* control = nullptr;
  ControlLayout control_layout;
  const std::uint64_t* step = nullptr;
  double ema_decay = 0.9999;
  int average_steps = 1;  ///< as in UpdateBinding, as is the next
  const double* gradient_norm = nullptr;
};

/// The end of a step: the record is left for the host and the step counter moves on, if the loss was finite,
/// its decay term included: that is not when weights have overflowed; and the gradient's norm, if it is known.
struct AdvanceBinding {
  const float* control = nullptr;
  ControlLayout control_layout;
  std::uint64_t global_batch = 0;
  std::span<const double> decay_sums;
  std::uint64_t* step = nullptr;
  const double* gradient_norm = nullptr;  ///< null: gradients are not clipped
  /// That a replay takes. As many counters stand at `step`, one for each; the record is of the last.
  int steps = 1;
};

/// Values of a fp32 block that are to be counted.
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

/// Bytes that go from one place to another, in host memory or a device's.
struct CopyBinding {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  std::size_t bytes = 0;
};

/// Evaluation of one batch: samples [cursor, cursor + batch) of `data`, past its end padded with label 255.
struct EvaluateBinding {
  const float* params = nullptr;  ///< the block to evaluate, raw or EMA
  DataView data;
  data::AugmentSpec augment;            ///< kind none
  std::uint64_t* cursor = nullptr;      ///< moves on by `batch` in every replay
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
  /// Resolves `automatic`; throws Error{device} for one this device does not have.
  virtual Precision resolve(Precision precision) const = 0;
  /// Zeroed memory of this device, 64-byte aligned.
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// Zeroed host memory, 64-byte aligned, that messages can lie in and copy_task reaches without detours.
  virtual Buffer allocate_pinned(std::size_t bytes) = 0;
  /// Copies between host and this device's memory, in either direction; returns when done.
  virtual void copy(std::byte* dst, const std::byte* src, std::size_t bytes) = 0;
  /// The kernels for a network, which lower::Tower makes programs of.
  virtual TowerKernels plan(const TowerSpec& spec) = 0;
  /// The optimizer + EMA of one span, and the end of the step; `records` (host-readable) has kRecordRing
  /// entries.
  virtual Task update_task(const UpdateBinding& binding, const model::ParamTable& params,
                           const ParamLayout& layout) = 0;
  /// norm = √Σ grads², added in double in an order that depends on the length alone.
  virtual Task gradient_norm_task(const GradientNormBinding& binding) = 0;
  virtual Task running_task(const RunningBinding& binding, const model::ParamTable& params,
                            const ParamLayout& layout) = 0;
  virtual Task advance_task(const AdvanceBinding& binding, std::vector<StepRecord>& records) = 0;
  /// Counts the values of each, see ValueCounts; the same on every device.
  virtual Task count_task(std::string name, const std::vector<CountBinding>& bindings) = 0;
  virtual Task sum_task(std::string name, const SumBinding& binding) = 0;
  /// All of these, in host memory of allocate_pinned or the device's.
  virtual Task copy_task(std::string name, const std::vector<CopyBinding>& bindings) = 0;
  /// ++*counter, in this device's memory.
  virtual Task increment_task(std::string name, std::uint64_t* counter) = 0;
  virtual std::unique_ptr<Runner> runner(StepProgram program, RunnerKind kind,
                                         std::vector<Bytes> regions) = 0;
};

}  // namespace cifar_mpi::engine
