#include "cpu/conv.hpp"

namespace cifar_mpi::cpu {
namespace {

using dnnl::memory;

memory::dims weight_dims(const model::Conv2d& layer, const Extent& in) {
  return {layer.out_channels, in.channels, layer.kernel, layer.kernel};
}

}  // namespace

Affine plan_conv(const Dnnl& dnnl, const model::Conv2d& layer, const AffinePlace& place) {
  constexpr auto kFp32 = memory::data_type::f32;
  constexpr auto kAny = memory::format_tag::any;
  const memory::dims weights = weight_dims(layer, place.in);
  AffineFormats formats;
  formats.src = place.src;
  formats.weights = Desc(weights, place.type, kAny);
  formats.grad_weights = Desc(weights, kFp32, kAny);
  formats.biases = Desc({layer.out_channels}, kFp32, memory::format_tag::a);
  formats.dst =
      activations(place.batch, place.out, place.dst_type, place.choose_dst ? kAny : memory::format_tag::nhwc);
  formats.relu = place.relu;
  formats.wants_grad_src = place.wants_grad_src;
  const Window window{layer.kernel, 1, place.in.height, place.in.width};
  return settle_affine(dnnl, formats, make_convolution(dnnl, formats, window));
}

Desc conv_logical_weights(const model::Conv2d& layer, const Extent& in) {
  return {weight_dims(layer, in), memory::data_type::f32, memory::format_tag::hwio};
}

}  // namespace cifar_mpi::cpu
