#include "cpu/planning.hpp"

#include <algorithm>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "cpu/parallel.hpp"

namespace cifar_mpi::cpu {
namespace {

class SimpleGroup final : public PlannedGroup {
 public:
  SimpleGroup(Planning& planning, engine::Contract contract, PassPlan forward, PassPlan backward)
      : PlannedGroup(planning), forward_(std::move(forward)), backward_(std::move(backward)) {
    contract_ = std::move(contract);
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena&) const override {
    engine::GroupTasks tasks;
    tasks.forward.push_back(forward_(name() + " forward", operands));
    if (backward_ && operands.grad_src[0] != nullptr)
      tasks.backward.push_back(backward_(name() + " backward", operands));
    return tasks;
  }

 private:
  PassPlan forward_, backward_;
};

}  // namespace

Planning::Planning(const engine::TowerSpec& spec, int choose_for, const Planning* like)
    : batch(spec.batch),
      precision(spec.precision),
      type(data_type_of(spec.precision)),
      conv(spec.conv),
      threads(loop_threads()),
      conv_threads(choose_for > 0 ? choose_for : threads),
      like_(like) {}

engine::Format Planning::format(const Desc& desc) {
  const auto known = std::ranges::find(descs_, desc);
  const int id = static_cast<int>(known - descs_.begin());
  const std::size_t bytes = desc.get_size();
  if (known == descs_.end()) descs_.push_back(desc);
  return {id, bytes};
}

Desc Planning::nhwc(const Extent& extent, Type of) const {
  return activations(batch, extent, of, dnnl::memory::format_tag::nhwc);
}

bool Planning::is(const Desc& desc, const Extent& extent, dnnl::memory::format_tag tag) const {
  return desc == activations(batch, extent, type, tag);
}

int Planning::block_of(const Desc& desc, const Extent& extent) const {
  using Tag = dnnl::memory::format_tag;
  if (is(desc, extent, Tag::nhwc)) return extent.channels;
  if (is(desc, extent, Tag::nchw)) return 1;
  if (extent.channels % 16 == 0 && is(desc, extent, Tag::nChw16c)) return 16;
  if (extent.channels % 8 == 0 && is(desc, extent, Tag::nChw8c)) return 8;
  return 0;
}

ChannelBlocks Planning::known_blocks(const engine::Format& value, const Extent& extent) const {
  const Desc& lies = desc(value);
  const int block = block_of(lies, extent);
  if (block == 0 || lies == nhwc(extent)) return {nhwc(extent), extent.channels, true};
  return {lies, block, false};
}

ChannelBlocks Planning::blocks_like(const ChannelBlocks& src, const Extent& extent) const {
  using Tag = dnnl::memory::format_tag;
  if (src.nhwc || src.block < 8 || extent.channels % src.block != 0)
    return {nhwc(extent), extent.channels, true};
  return {activations(batch, extent, type, src.block == 16 ? Tag::nChw16c : Tag::nChw8c), src.block, false};
}

std::size_t Planning::values_in(const engine::Format& format) const {
  return format.bytes / (type == Type::bf16 ? sizeof(std::uint16_t) : sizeof(float));
}

void Planning::note(const std::string& what, const Kernel& kernel, const std::string& remark) {
  text += concat(what, ": ", kernel.implementation(), remark, "\n");
}

engine::Contract plain_contract(std::string name, const engine::ValueFormat& src,
                                const engine::ValueFormat& dst) {
  engine::Contract contract;
  contract.name = std::move(name);
  contract.src = {src};
  contract.dst = dst;
  return contract;
}

PlannedGroupPtr simple_group(Planning& planning, engine::Contract contract, PassPlan forward,
                             PassPlan backward) {
  return std::make_unique<SimpleGroup>(planning, std::move(contract), std::move(forward),
                                       std::move(backward));
}

}  // namespace cifar_mpi::cpu
