#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"
#include "cpu/dnnl.hpp"

/// Plans chains of layers as groups with kernels, with one function per kind of group in the file of its
/// layer; kernels.cpp lists them. Each returns null if the chain does not begin with its layer, and throws
/// dnnl::error if oneDNN has no kernel.
///
/// Formats are those that measured fastest. The first convolution reads NCHW; oneDNN chooses its output
/// (blocked by 16 channels with AVX-512), our kernels write NHWC. Poolings keep their input's format. A local
/// response normalization writes NHWC, which all later layers use, except 3x3 convolutions, which prefer blocks in fp32,
/// and by FFT or Winograd's filtering in bf16 too, also if the last block of the input is padded; BatchNorm, shortcuts and
/// sums keep them. If a layer needs another format than its input has, the lowering inserts a reorder. Master weights
/// have the format of the weight gradient.
namespace cifar_mpi::cpu {

/// Activations in blocks of `block` channels, as LrnShape counts them.
struct ChannelBlocks {
  Desc desc;
  int block = 0;
  bool nhwc = false;
};

/// Data that the groups of one network share during and after planning.
class Planning {
 public:
  using Type = dnnl::memory::data_type;

  /// `choose_for`: conv_threads of BackendOptions. `like`: of TowerSpec::like, or null.
  Planning(const engine::TowerSpec& spec, int choose_for, const Planning* like);

  Dnnl dnnl;
  int batch;
  engine::Precision precision;
  Type type;  ///< of activations and compute copies
  engine::ConvMethod conv;
  int threads;       ///< for which kernels are planned
  int conv_threads;  ///< for which `automatic` chooses between FFT and direct
  std::string text;  ///< kernel choices, one per line

  /// How the weights of a convolution lie in memory.
  struct Weights {
    Desc master;
    engine::ConvMethod method = engine::ConvMethod::direct;
  };
  std::map<std::string, Weights> weights;  ///< by layer with weights
  /// Those of TowerSpec::like, which this tower must match; null: any.
  const Weights* wanted_weights(const std::string& layer) const {
    return like_ != nullptr ? &like_->weights.at(layer) : nullptr;
  }

  /// Conversion to and from formats of the lowering. A value and its gradient differ only in type.
  engine::Format format(const Desc& desc);
  const Desc& desc(const engine::Format& format) const {
    return descs_.at(static_cast<std::size_t>(format.id));
  }
  engine::ValueFormat formats(const Desc& value, const Desc& grad) { return {format(value), format(grad)}; }
  engine::ValueFormat formats(const Desc& both) { return formats(both, both); }

  Desc nhwc(const Extent& extent, Type of) const;
  Desc nhwc(const Extent& extent) const { return nhwc(extent, type); }
  /// Whether `desc` holds activations of `extent` in the tower's type as `tag` says.
  bool is(const Desc& desc, const Extent& extent, dnnl::memory::format_tag tag) const;
  /// Channels per block as LrnShape counts them; 0 for any other format.
  int block_of(const Desc& desc, const Extent& extent) const;
  /// The format of a value of `extent`, if it is one of these, else NHWC.
  ChannelBlocks known_blocks(const engine::Format& value, const Extent& extent) const;
  /// The output format of a layer that keeps channels separate: the blocks of its input, if these are of 8 or
  /// 16 channels and fit `extent`, else NHWC.
  ChannelBlocks blocks_like(const ChannelBlocks& src, const Extent& extent) const;

  /// Values of the tower's type in a tensor, padding included.
  std::size_t values_in(const engine::Format& format) const;

  void note(const std::string& what, const Kernel& kernel, const std::string& remark = "");

 private:
  const Planning* like_;
  std::vector<Desc> descs_;  ///< by Format::id
};

/// A group with its contract; `planning` outlives it.
class PlannedGroup : public engine::Group {
 public:
  explicit PlannedGroup(Planning& planning) : planning_(planning) {}
  const engine::Contract& contract() const override { return contract_; }

 protected:
  const std::string& name() const { return contract_.name; }

  Planning& planning_;
  engine::Contract contract_;
};

using PlannedGroupPtr = std::unique_ptr<engine::Group>;

/// The contract of a group with one input and without parameters.
engine::Contract plain_contract(std::string name, const engine::ValueFormat& src,
                                const engine::ValueFormat& dst);
/// A task for the operands of one pass; `name` is that of the task.
using PassPlan = std::function<engine::Task(const std::string& name, const engine::Operands& operands)>;
/// A group with one task per pass, which needs no memory of its own; `backward` may be empty.
PlannedGroupPtr simple_group(Planning& planning, engine::Contract contract, PassPlan forward,
                             PassPlan backward = {});

/// Conv2d, fused with the ReLU and the pooling after it where possible.
PlannedGroupPtr plan_conv_group(Planning& planning, const engine::Chain& chain);
/// Linear, with the ReLU after it.
PlannedGroupPtr plan_linear_group(Planning& planning, const engine::Chain& chain);
PlannedGroupPtr plan_pool_group(Planning& planning, const engine::Chain& chain);
/// BatchNorm, with the ReLU or SiLU after it, or the sum and the ReLU.
PlannedGroupPtr plan_batch_norm_group(Planning& planning, const engine::Chain& chain);
PlannedGroupPtr plan_global_avg_pool_group(Planning& planning, const engine::Chain& chain);
PlannedGroupPtr plan_shortcut_group(Planning& planning, const engine::Chain& chain);
PlannedGroupPtr plan_lrn_group(Planning& planning, const engine::Chain& chain);
/// A ReLU that is not fused with a layer.
PlannedGroupPtr plan_relu_group(Planning& planning, const engine::Chain& chain);
/// SiLU that no BatchNorm precedes, GELU or a constant factor.
PlannedGroupPtr plan_pointwise_group(Planning& planning, const engine::Chain& chain);
PlannedGroupPtr plan_add_group(Planning& planning, const engine::Chain& chain);

PlannedGroupPtr plan_reorder_group(Planning& planning, const std::string& name,
                                   const engine::ValueFormat& from, const engine::ValueFormat& to,
                                   bool wants_grad);

/// The kernels for a network, planned for the current number of OpenMP threads. Throws Error{usage} when
/// `spec.batch` is below 1. `spec.precision` is fp32 or bf16, `conv_threads` as in BackendOptions.
engine::TowerKernels plan_kernels(const engine::TowerSpec& spec, int conv_threads);

/// The group of a convolution that reads images of few channels, with its ReLU and max-pooling, by the
/// kernels of image_kernels.hpp. Null if the chain has other layers, the method is direct, or the rule finds
/// no kernels faster than oneDNN's.
PlannedGroupPtr plan_image_conv_group(Planning& planning, const engine::Chain& chain);

}  // namespace cifar_mpi::cpu
