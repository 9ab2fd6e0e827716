#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/engine/arena.hpp"
#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/model/net_spec.hpp"

/// The seam between a network and the kernels of a device.
///
/// The lowering (module lower) knows the graph: what is fused with what is asked chain by chain, and backward
/// order, sums of gradients, masks, reorders and memory are its own. A backend knows kernels and formats, and
/// nothing of graphs.
namespace cifar_mpi::engine {

struct EvaluateBinding;
struct RankFacts;
struct TrainBinding;
struct ValueCounts;

/// How a tensor lies in memory; only the backend that made it knows what an id means. Equal ids: equal bytes
/// for equal values.
struct Format {
  int id = -1;
  std::size_t bytes = 0;  ///< of the whole batch
  bool operator==(const Format&) const = default;
};

/// A value of the network, and its gradient, which has the precision of the tower.
struct ValueFormat {
  Format value;
  Format grad;
};

/// Operations that may be planned as one: each reads what the one before gives, which nobody else reads. One that
/// has more inputs, an Add, reads others besides, which no operation of the chain makes.
struct Chain {
  const model::NetSpec* net = nullptr;
  std::vector<std::size_t> operations;  ///< indices in NetSpec::operations; at least one
  /// As they lie: those of the first operation, then what each further one reads besides.
  std::vector<ValueFormat> inputs;
  std::vector<bool> wants_grad;  ///< by input

  std::size_t size() const { return operations.size(); }
  const model::Operation& operation(std::size_t i) const { return net->operations[operations[i]]; }
  /// The i-th layer if it is there and of this type, else null.
  template <class Layer>
  const Layer* as(std::size_t i) const {
    return i < size() ? std::get_if<Layer>(&operation(i).layer) : nullptr;
  }
  const Extent& in() const { return net->input_of(operations.front()); }
  /// What the i-th operation gives.
  const Extent& out(std::size_t i) const { return net->output_of(operations[i]); }
};

/// What a group does about the mask of a ReLU when what it reads is the output of one (no gradient where that
/// is not positive). takes: its backward pass masks on the way, when told to. passes: its own output is
/// positive exactly where what it took from its input is, as that of a max-pooling, so the mask may be applied
/// to the gradient of its output instead.
enum class ReluMask : std::uint8_t { none, takes, passes };

/// What a planned group promises; the lowering reads it and nothing else.
struct Contract {
  std::string name;            ///< begins the names of its tasks
  std::size_t operations = 1;  ///< how many of the chain it took: the longest match
  /// Formats it reads, and of the gradients that it leaves; by input of the operations it took.
  std::vector<ValueFormat> src;
  ValueFormat dst;                   ///< what it gives, and the gradient that its backward pass reads
  std::vector<std::size_t> masters;  ///< floats in memory of each parameter, in the order of the operations
  bool relu_at_end = false;          ///< its output is that of a ReLU whose mask it leaves to others
  bool can_mask_dst = false;         ///< its backward pass can apply that mask itself, in place, when told to
  ReluMask mask_src = ReluMask::none;
  bool hands_grad_on = false;  ///< no backward tasks: the gradient of each input is that of its output
  bool grad_on_src = false;    ///< the gradient of its first input may overwrite that input
  bool joins_grads = false;    ///< it takes the gradient of its output also in two parts
  std::optional<std::size_t> grad_on_dst;  ///< the input whose gradient may overwrite either of these
};

/// Where one parameter lies in a program: its own span of the flat blocks.
struct ParamPlace {
  const float* master = nullptr;
  /// Null in evaluation, and for a frozen parameter. Of a running one: where the batch's statistics go, times
  /// Operands::statistics_share.
  float* grad = nullptr;
  const std::byte* copy = nullptr;  ///< the same span of Kernels::copy_params, null where there is none
};

/// What the tasks of one group work on in one program; gradients are null in evaluation and where backward
/// needs none.
struct Operands {
  bool training = false;
  std::vector<const std::byte*> src;  ///< by input
  std::byte* dst = nullptr;
  std::byte* grad_dst = nullptr;
  const std::byte* more_grad_dst = nullptr;  ///< to be added to it; null unless the group joins gradients
  std::vector<std::byte*> grad_src;          ///< by input
  std::vector<ParamPlace> params;            ///< as in Contract::masters
  float statistics_share = 1.0f;             ///< of this part of the batch in the statistics of all ranks
  double flops = 0.0;     ///< of one forward pass over the batch, without taps outside the image
  bool mask_src = false;  ///< its input is a ReLU's output, and the group is to mask (ReluMask::takes)
  bool mask_dst = false;  ///< its output is, and the group is to mask (can_mask_dst)
};

/// Tasks in the order in which they must run. `prepare` comes before all forward tasks of the program.
struct GroupTasks {
  std::vector<Task> prepare, forward, backward;
};

/// One or more operations, planned for one batch and precision.
class Group {
 public:
  virtual ~Group() = default;
  virtual const Contract& contract() const = 0;
  /// The tasks on these operands; what else they need (workspaces, compute copies of weights, scratch) they
  /// take from `arena`, each a piece of its own: the lowering lets pieces share memory by what the tasks say
  /// they touch. Called more than once, with other addresses that only the last call's tasks follow.
  virtual GroupTasks tasks(const Operands& operands, Arena& arena) const = 0;
  /// Parameter `part` (as in Contract::masters) between its span of a block in host memory and logical order;
  /// `from_logical` zeroes the padding. By default both orders are the same, and the padding follows the values.
  virtual void to_logical(std::size_t part, std::span<const float> physical, std::span<float> logical) const;
  virtual void from_logical(std::size_t part, std::span<const float> logical,
                            std::span<float> physical) const;
};

/// A compute copy of a whole parameter block.
struct ParamCopy {
  const std::byte* at = nullptr;
  std::size_t bytes_per_float = 0;  ///< bytes that stand for a float of the block
  Task task;
};

/// The kernels of one device for one batch and precision; all it gives lives as long as it.
class Kernels {
 public:
  virtual ~Kernels() = default;
  /// The longest match that begins with the chain. Throws Error{usage}, naming the layer, where there is no
  /// kernel.
  virtual std::unique_ptr<Group> plan(const Chain& chain) = 0;
  /// The same values in another format or type; backward only where a gradient is wanted.
  virtual std::unique_ptr<Group> reorder(std::string name, const Extent& extent, const ValueFormat& from,
                                         const ValueFormat& to, bool wants_grad) = 0;
  /// dst = a + b, all of one format; dst may be a or b.
  virtual Task add(std::string name, const Format& format, std::byte* dst, const std::byte* a,
                   const std::byte* b) const = 0;
  /// dst = grad where value > 0, else 0; all of one format; dst may be grad.
  virtual Task mask(std::string name, const Format& format, const std::byte* value, const std::byte* grad,
                    std::byte* dst) const = 0;
  /// Counts the values of a tensor, padding left out (see ValueCounts); memory it needs comes from `arena`. None
  /// where the kernels do not count.
  virtual std::optional<Task> count(std::string /*name*/, const Extent& /*extent*/, const Format& /*format*/,
                                    const std::byte* /*value*/, ValueCounts* /*counts*/,
                                    Arena& /*arena*/) const {
    return std::nullopt;
  }
  /// A copy of the whole block that groups want besides their own; none by default.
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

/// The two ends of a network: what fills its input, and what reads its logits.
class Ends {
 public:
  virtual ~Ends() = default;
  virtual ValueFormat images() const = 0;  ///< that the input tasks write
  /// What the loss tasks read, and the gradient they write, when the logits lie as `have`.
  virtual ValueFormat logits(const ValueFormat& have) const = 0;

  /// Begins a step: the control block.
  virtual Task control(const TrainBinding& binding) const = 0;
  virtual Task train_input(const TrainBinding& binding, std::byte* x, std::uint8_t* labels) const = 0;
  /// dst [images, h, w, c] fp32: the first ones of what the input task wrote. None where images are not kept.
  virtual std::optional<Task> keep_images(const std::byte* /*x*/, int /*images*/, float* /*dst*/) const {
    return std::nullopt;
  }
  virtual Task train_loss(const TrainBinding& binding, const Logits& logits, const std::uint8_t* labels,
                          std::byte* grad_logits) const = 0;
  /// Ends the computation of a step: notes how long it took since `control`.
  virtual Task compute_time(RankFacts* facts) const = 0;
  virtual Task evaluate_input(const EvaluateBinding& binding, std::byte* x, std::uint8_t* labels) const = 0;
  virtual Task evaluate_loss(const EvaluateBinding& binding, const Logits& logits,
                             const std::uint8_t* labels) const = 0;
};

/// What a backend brings for one network.
struct TowerKernels {
  std::unique_ptr<Kernels> kernels;
  std::unique_ptr<Ends> ends;
};

}  // namespace cifar_mpi::engine
