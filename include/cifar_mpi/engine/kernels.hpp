#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/engine/arena.hpp"
#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/model/net_spec.hpp"

/// The seam between a network and the kernels of a device.
///
/// The lowering (module lower) knows the graph: it asks for fusions chain by chain, and decides on backward
/// order, sums of gradients, masks, reorders and memory. A backend knows kernels and formats, but no graphs.
namespace cifar_mpi::engine {

struct EvaluateBinding;
struct RankFacts;
struct TrainBinding;
struct ValueCounts;

/// Memory layout of a tensor; only the backend that made it can interpret an id. With equal ids, equal values
/// have equal bytes.
struct Format {
  int id = -1;
  std::size_t bytes = 0;  ///< of the whole batch
  bool operator==(const Format&) const = default;
};

/// A value of the network and its gradient, which has the tower's precision.
struct ValueFormat {
  Format value;
  Format grad;
};

/// Operations that may be planned as one: each reads the output of the one before it, which has no other
/// reader. An operation with more inputs, such as Add, also reads values from outside the chain.
struct Chain {
  const model::NetSpec* net = nullptr;
  std::vector<std::size_t> operations;  ///< indices in NetSpec::operations; at least one
  /// Formats as they are: the inputs of the first operation, then the further inputs of each later one.
  std::vector<ValueFormat> inputs;
  std::vector<bool> wants_grad;  ///< by input

  std::size_t size() const { return operations.size(); }
  const model::Operation& operation(std::size_t i) const { return net->operations[operations[i]]; }
  /// The i-th layer if it exists and has this type, else null.
  template <class Layer>
  const Layer* as(std::size_t i) const {
    return i < size() ? std::get_if<Layer>(&operation(i).layer) : nullptr;
  }
  const Extent& in() const { return net->input_of(operations.front()); }
  /// The output of the i-th operation.
  const Extent& out(std::size_t i) const { return net->output_of(operations[i]); }
};

/// How a group treats the mask of a ReLU whose output it reads (the gradient is zero where that output is not
/// positive). takes: its backward pass can apply the mask. passes: its own output is positive exactly where
/// the value taken from its input is, as in max-pooling, so the mask may be applied to the gradient of its
/// output instead.
enum class ReluMask : std::uint8_t { none, takes, passes };

/// The properties of a planned group; the lowering reads nothing else.
struct Contract {
  std::string name;            ///< prefix of its tasks' names
  std::size_t operations = 1;  ///< operations of the chain that it took: the longest match
  /// Formats of its inputs and of their gradients, by input of the operations it took.
  std::vector<ValueFormat> src;
  ValueFormat dst;                   ///< its output, and the gradient that its backward pass reads
  std::vector<std::size_t> masters;  ///< floats in memory of each parameter, in the order of the operations
  bool relu_at_end = false;          ///< its output comes from a ReLU whose mask other groups apply
  bool can_mask_dst = false;         ///< its backward pass can apply that mask in place
  ReluMask mask_src = ReluMask::none;
  bool hands_grad_on = false;  ///< no backward tasks: the gradient of each input is that of its output
  bool grad_on_src = false;    ///< the gradient of its first input may overwrite that input
  bool joins_grads = false;    ///< it accepts the gradient of its output in two parts
  std::optional<std::size_t> grad_on_dst;  ///< the input whose gradient may overwrite either part
};

/// A parameter in a program: its span of the flat blocks.
struct ParamPlace {
  const float* master = nullptr;
  /// Null in evaluation and for a frozen parameter, or scratch memory if another parameter of the group is trained,
  /// so that one kernel computes both. For a running one: receives the batch's statistics times
  /// Operands::statistics_share.
  float* grad = nullptr;
  const std::byte* copy = nullptr;  ///< the same span of Kernels::copy_params; null without a copy
};

/// Sums over all ranks between two tasks of a group (--sync-batch-norm). The first writes this rank's sums to
/// `memory`, the task of sum_over_ranks replaces them by the totals, and the second reads them. The next group uses the
/// same memory.
struct RankSums {
  float* memory = nullptr;  ///< null: nothing is summed, as in a world of one
  int ranks = 1;
};
/// Has no work until the run's way to update gives it one (comm::StepParts::compute).
inline Task sum_over_ranks(std::string name, const RankSums& sums, std::size_t floats) {
  Task task;
  task.name = std::move(name);
  task.reads = task.writes = {bytes_of(sums.memory, floats)};
  task.kind = TaskKind::collective;
  return task;
}

/// The data of one group's tasks in one program; gradients are null in evaluation and where backward does not
/// need them.
struct Operands {
  bool training = false;
  std::vector<const std::byte*> src;  ///< by input
  std::byte* dst = nullptr;
  std::byte* grad_dst = nullptr;
  const std::byte* more_grad_dst = nullptr;  ///< to be added to it; null unless the group joins gradients
  std::vector<std::byte*> grad_src;          ///< by input
  std::vector<ParamPlace> params;            ///< as in Contract::masters
  float statistics_share = 1.0f;  ///< weight of this part of the batch in the statistics of all ranks
  RankSums rank_sums;             ///< for layers that normalize over the batch
  double flops = 0.0;             ///< of one forward pass over the batch, without taps outside the image
  bool mask_src = false;          ///< its input is a ReLU's output, and the group must mask (ReluMask::takes)
  bool mask_dst = false;          ///< its output is a ReLU's output, and the group must mask (can_mask_dst)
};

/// Tasks in their required order. `prepare` runs before all forward tasks of the program.
struct GroupTasks {
  std::vector<Task> prepare, forward, backward;
};

/// One or more operations, planned for one batch and precision.
class Group {
 public:
  virtual ~Group() = default;
  virtual const Contract& contract() const = 0;
  /// The tasks on these operands. Workspaces, compute copies of weights and scratch come from `arena`, each
  /// as a separate piece: the lowering lets pieces share memory according to the bytes that tasks declare.
  /// When called again with other addresses, only the tasks of the last call are valid.
  virtual GroupTasks tasks(const Operands& operands, Arena& arena) const = 0;
  /// Converts parameter `part` (an index of Contract::masters) between its span of a block in host memory and
  /// logical order; `from_logical` zeroes the padding. By default both orders are equal, and padding follows
  /// the values.
  virtual void to_logical(std::size_t /*part*/, std::span<const float> physical,
                          std::span<float> logical) const {
    std::copy_n(physical.begin(), logical.size(), logical.begin());
  }
  virtual void from_logical(std::size_t /*part*/, std::span<const float> logical,
                            std::span<float> physical) const {
    std::fill(std::ranges::copy(logical, physical.begin()).out, physical.end(), 0.0f);
  }
};

/// A compute copy of a whole parameter block.
struct ParamCopy {
  const std::byte* at = nullptr;
  std::size_t bytes_per_float = 0;  ///< bytes per float of the block
  Task task;
};

/// The kernels of one device for one batch and precision; they outlive all that they return.
class Kernels {
 public:
  virtual ~Kernels() = default;
  /// The longest match that begins with the chain. Throws Error{usage} with the layer's name if there is no
  /// kernel.
  virtual std::unique_ptr<Group> plan(const Chain& chain) = 0;
  /// The same values in another format or type; backward only if the gradient is wanted.
  virtual std::unique_ptr<Group> reorder(std::string name, const Extent& extent, const ValueFormat& from,
                                         const ValueFormat& to, bool wants_grad) = 0;
  /// dst = a + b, all in one format; dst may be a or b.
  virtual Task add(std::string name, const Format& format, std::byte* dst, const std::byte* a,
                   const std::byte* b) const = 0;
  /// dst = grad where value > 0, else 0; all in one format; dst may be grad.
  virtual Task mask(std::string name, const Format& format, const std::byte* value, const std::byte* grad,
                    std::byte* dst) const = 0;
  /// Counts the values of a tensor without its padding (see ValueCounts), with memory from `arena`. Empty if
  /// the kernels do not count.
  virtual std::optional<Task> count(std::string /*name*/, const Extent& /*extent*/, const Format& /*format*/,
                                    const std::byte* /*value*/, ValueCounts* /*counts*/,
                                    Arena& /*arena*/) const {
    return std::nullopt;
  }
  /// A copy of the whole block that groups need besides their own; none by default.
  virtual std::optional<ParamCopy> copy_params(const float* /*block*/, std::size_t /*floats*/,
                                               Arena& /*arena*/) const {
    return std::nullopt;
  }
  /// Called once, when all groups are planned. Returns the kernel choices that affect bits, one per line.
  virtual std::string finalize() = 0;
};

struct Logits {
  const std::byte* at = nullptr;
  Format format;
};

/// The two ends of a network: the tasks that fill its input, and those that read its logits.
class Ends {
 public:
  virtual ~Ends() = default;
  virtual ValueFormat images() const = 0;  ///< format that the input tasks write
  /// The format that the loss tasks read, and of the gradient they write, for logits in format `have`.
  virtual ValueFormat logits(const ValueFormat& have) const = 0;

  /// The first task of a step: fills the control block.
  virtual Task control(const TrainBinding& binding) const = 0;
  virtual Task train_input(const TrainBinding& binding, std::byte* x, std::uint8_t* labels) const = 0;
  /// dst [images, h, w, c] fp32: the first images of the input task's output. Empty if no images are kept.
  virtual std::optional<Task> keep_images(const std::byte* /*x*/, int /*images*/, float* /*dst*/) const {
    return std::nullopt;
  }
  virtual Task train_loss(const TrainBinding& binding, const Logits& logits, const std::uint8_t* labels,
                          std::byte* grad_logits) const = 0;
  /// The last task of a step's computation: stores the time since `control`.
  virtual Task compute_time(RankFacts* facts) const = 0;
  virtual Task evaluate_input(const EvaluateBinding& binding, std::byte* x, std::uint8_t* labels) const = 0;
  virtual Task evaluate_loss(const EvaluateBinding& binding, const Logits& logits,
                             const std::uint8_t* labels) const = 0;
};

/// The kernels of a backend for one network.
struct TowerKernels {
  std::unique_ptr<Kernels> kernels;
  std::unique_ptr<Ends> ends;
};

}  // namespace cifar_mpi::engine
