#include <utility>

#include "cpu/affine_group.hpp"

namespace cifar_mpi::cpu {
namespace {

using dnnl::memory;

/// Whether waking oneDNN's threads takes longer than one thread takes for the products.
bool is_small(const model::Linear& layer, const AffinePlace& place) {
  constexpr double kMostFlops = 5e6;
  return 2.0 * place.batch * static_cast<double>(place.in.count()) * layer.outputs <= kMostFlops;
}

/// Formats, kernels and weight copies of a linear layer over [batch, in.count()], the NHWC input flattened,
/// so `place.src` must be NHWC. Throws dnnl::error.
Affine plan_linear(const Dnnl& dnnl, const model::Linear& layer, const AffinePlace& place) {
  constexpr auto kFp32 = memory::data_type::f32;
  constexpr auto kRows = memory::format_tag::ab;
  AffineFormats formats;
  formats.src = matrix(place.batch, place.in.count(), place.type, kRows);
  formats.weights = matrix(layer.outputs, place.in.count(), place.type, memory::format_tag::any);
  formats.grad_weights = matrix(layer.outputs, place.in.count(), kFp32, memory::format_tag::any);
  if (layer.with_bias) formats.biases = Desc({layer.outputs}, kFp32, memory::format_tag::a);
  formats.dst = matrix(place.batch, layer.outputs, place.dst_type, kRows);
  formats.grad_dst = matrix(place.batch, layer.outputs, place.type, kRows);
  formats.relu = place.relu;
  formats.wants_grad_src = place.wants_grad_src;
  AffineKernels kernels;
  {
    const OneThread one(is_small(layer, place));
    kernels = make_inner_product(dnnl, formats);
  }
  return make_affine(dnnl, formats, std::move(kernels));
}

/// The weights' logical order, [in, out].
Desc linear_logical_weights(const model::Linear& layer, const Extent& in) {
  return matrix(layer.outputs, in.count(), memory::data_type::f32, memory::format_tag::ba);
}

}  // namespace

PlannedGroupPtr plan_linear_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::Linear>(0);
  if (layer == nullptr) return nullptr;
  // The loss reads fp32.
  const bool gives_logits = chain.operation(0).output == chain.net->logits();
  AffinePlace place;
  place.batch = planning.batch;
  place.in = chain.in();
  place.out = chain.out(0);
  place.type = planning.type;
  place.dst_type = gives_logits ? memory::data_type::f32 : planning.type;
  place.relu = chain.as<model::Relu>(1) != nullptr;
  place.wants_grad_src = chain.wants_grad[0];
  auto group = std::make_unique<AffineGroup>(planning, layer->name, plan_linear(planning.dnnl, *layer, place),
                                             linear_logical_weights(*layer, place.in));
  group->contract_to_fill().src = {planning.formats(planning.nhwc(place.in))};
  group->contract_to_fill().dst =
      planning.formats(planning.nhwc(place.out, place.dst_type), planning.nhwc(place.out));
  return group;
}

}  // namespace cifar_mpi::cpu
