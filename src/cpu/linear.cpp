#include "cpu/linear.hpp"

namespace cifar_mpi::cpu {

using dnnl::memory;

Affine plan_linear(const Dnnl& dnnl, const model::Linear& layer, const AffinePlace& place) {
  constexpr auto kFp32 = memory::data_type::f32;
  constexpr auto kRows = memory::format_tag::ab;
  AffineFormats formats;
  formats.src = matrix(place.batch, place.in.count(), place.type, kRows);
  formats.weights = matrix(layer.outputs, place.in.count(), place.type, memory::format_tag::any);
  formats.grad_weights = matrix(layer.outputs, place.in.count(), kFp32, memory::format_tag::any);
  formats.biases = Desc({layer.outputs}, kFp32, memory::format_tag::a);
  formats.dst = matrix(place.batch, layer.outputs, place.dst_type, kRows);
  formats.grad_dst = matrix(place.batch, layer.outputs, place.type, kRows);
  formats.relu = place.relu;
  formats.wants_grad_src = place.wants_grad_src;
  return settle_affine(dnnl, formats, make_inner_product(dnnl, formats));
}

Desc linear_logical_weights(const model::Linear& layer, const Extent& in) {
  return matrix(layer.outputs, in.count(), memory::data_type::f32, memory::format_tag::ba);
}

}  // namespace cifar_mpi::cpu
