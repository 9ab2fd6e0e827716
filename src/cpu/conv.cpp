#include "cpu/conv.hpp"

#include <optional>
#include <utility>

#include "cpu/affine_group.hpp"
#include "cpu/conv_pool.hpp"
#include "cpu/pieces.hpp"
#include "cpu/planning.hpp"
#include "cpu/shared_pieces.hpp"

namespace cifar_mpi::cpu {
namespace {

using dnnl::memory;

memory::dims weight_dims(const model::Conv2d& layer, const Extent& in) {
  return {layer.out_channels, in.channels, layer.kernel, layer.kernel};
}

bool is_batched_gemm(const Kernel& kernel) { return kernel.implementation().starts_with("brg"); }

Rotation plan_rotation(const model::Conv2d& layer, const Extent& in) {
  const memory::dim out = layer.out_channels, inputs = in.channels, k = layer.kernel, tap = out * inputs;
  Rotation rotation;
  rotation.taps = Desc({out, inputs, k, k}, memory::data_type::f32, memory::dims{inputs, 1, k * tap, tap});
  rotation.rotated = Desc({inputs, out, k, k}, memory::data_type::f32, memory::dims{1, inputs, k * tap, tap});
  rotation.tap_count = layer.kernel * layer.kernel;
  rotation.tap_floats = static_cast<std::size_t>(tap);
  return rotation;
}

/// Replaces the data gradient by a rotated convolution if that is faster.
std::optional<Rotation> rotate_data_gradient(const Dnnl& dnnl, const model::Conv2d& layer, const Extent& in,
                                             const AffineFormats& formats, const Window& window,
                                             AffineKernels& kernels) {
  if (!formats.wants_grad_src || layer.stride > 1 || is_batched_gemm(kernels.data_gradient))
    return std::nullopt;
  if (!is_batched_gemm(kernels.forward)) return std::nullopt;
  const Desc weights({in.channels, layer.out_channels, layer.kernel, layer.kernel}, memory::data_type::f32,
                     memory::format_tag::any);
  Kernel rotated = make_rotated_convolution(dnnl, kernels.weight_gradient.describe(dnnl::query::diff_dst_md),
                                            weights, formats.src, window);
  if (!is_batched_gemm(rotated)) return std::nullopt;
  kernels.data_gradient = std::move(rotated);
  return plan_rotation(layer, in);
}

}  // namespace

Affine plan_conv(const Dnnl& dnnl, const model::Conv2d& layer, const AffinePlace& place) {
  constexpr auto kFp32 = memory::data_type::f32;
  constexpr auto kAny = memory::format_tag::any;
  const memory::dims weights = weight_dims(layer, place.in);
  AffineFormats formats;
  formats.src = place.src;
  formats.weights = Desc(weights, place.type, kAny);
  formats.grad_weights = place.master != nullptr ? *place.master : Desc(weights, kFp32, kAny);
  if (layer.with_bias) formats.biases = Desc({layer.out_channels}, kFp32, memory::format_tag::a);
  formats.dst = activations(place.batch, place.out, place.dst_type, place.choose_dst ? kAny : place.format);
  formats.relu = place.relu;
  formats.wants_grad_src = place.wants_grad_src;
  const Window window{layer.kernel, layer.stride, model::padding_of(layer, place.in.height),
                      model::padding_of(layer, place.in.width)};
  AffineKernels kernels;
  std::optional<Rotation> rotation;
  {
    const OneThread one(place.one_thread);
    kernels = make_convolution(dnnl, formats, window);
    // In bf16 both kernels take the same time, and rotation adds to it.
    if (place.type == kFp32) rotation = rotate_data_gradient(dnnl, layer, place.in, formats, window, kernels);
  }
  const Desc master = place.own_gradient ? conv_logical_weights(layer, place.in) : Desc();
  Affine affine = make_affine(dnnl, formats, std::move(kernels), std::move(rotation), master);
  affine.own_gradient = place.own_gradient;
  return affine;
}

Desc conv_logical_weights(const model::Conv2d& layer, const Extent& in) {
  return {weight_dims(layer, in), memory::data_type::f32, memory::format_tag::hwio};
}

namespace {

AffinePlace place_of(const Planning& planning, const engine::Chain& chain) {
  AffinePlace place;
  place.batch = planning.batch;
  place.src = planning.desc(chain.inputs[0].value);
  place.in = chain.in();
  place.out = chain.out(0);
  place.type = place.dst_type = planning.type;
  place.relu = chain.as<model::Relu>(1) != nullptr;
  place.wants_grad_src = chain.wants_grad[0];
  return place;
}

/// Whether oneDNN has more than reference loops for NCHW images. With three channels these kernels are its
/// fastest; with four it has none for the weight gradient: 10 s a step at batch 128 instead of 62 ms.
bool has_kernels_for_planes(const Planning& planning, const model::Conv2d& layer, AffinePlace place) {
  place.choose_dst = true;
  const Affine affine = plan_conv(planning.dnnl, layer, place);
  return !affine.kernels.forward.is_reference() && !affine.kernels.weight_gradient.is_reference();
}

/// Blocks where they are faster, see conv.hpp. `transforms`: for our convolutions by transforms, which take blocks in bf16
/// too, and where up to a quarter of the stored channels is padding.
memory::format_tag format_of(const Planning& planning, const model::Conv2d& layer, const AffinePlace& place,
                             bool transforms) {
  const int block = widest_block(), in = place.in.channels, stored = (in + block - 1) / block * block;
  const bool fits = layer.kernel == 3 && (transforms ? 3 * stored <= 4 * in : stored == in) &&
                    place.out.channels % block == 0;
  if (!fits || (!transforms && planning.precision == engine::Precision::bf16))
    return memory::format_tag::nhwc;
  return block == 16 ? memory::format_tag::nChw16c : memory::format_tag::nChw8c;
}

AffinePlace with_format(const Planning& planning, AffinePlace place, memory::format_tag format) {
  place.format = format;
  if (!place.choose_dst) place.src = activations(planning.batch, place.in, planning.type, format);
  return place;
}

/// A convolution with the formats of the whole batch.
struct PiecedConv {
  Affine affine;
  Desc dst, grad_dst;
};

/// The format of the whole batch if `piece` has one of these formats, else none.
std::optional<Desc> whole_of(const Planning& planning, const Desc& piece, int samples, const Extent& extent) {
  using Tag = memory::format_tag;
  for (const Tag tag : {Tag::nhwc, Tag::nchw, Tag::nChw16c, Tag::nChw8c}) {
    if (piece == activations(samples, extent, planning.type, tag))
      return activations(planning.batch, extent, planning.type, tag);
  }
  return std::nullopt;
}

/// The convolution in pieces that the threads compute at the same time, if the batch has such pieces.
std::optional<PiecedConv> plan_shared(const Planning& planning, const model::Conv2d& layer,
                                      AffinePlace place) {
  const int samples = samples_per_shared_piece(planning.batch, planning.threads);
  if (samples == 0) return std::nullopt;
  place.batch = samples;
  place.src = piece_of(place.src, samples);
  place.one_thread = true;
  Affine affine = plan_conv(planning.dnnl, layer, place);
  affine.pieces = planning.batch / samples;
  affine.concurrent = planning.threads;
  const std::optional<Desc> dst = whole_of(planning, affine.dst, samples, place.out);
  const std::optional<Desc> grad_dst = whole_of(planning, affine.grad_dst, samples, place.out);
  if (!dst || !grad_dst) return std::nullopt;
  return PiecedConv{std::move(affine), *dst, *grad_dst};
}

PiecedConv plan_in_pieces(const Planning& planning, const model::Conv2d& layer, AffinePlace place) {
  if (std::optional<PiecedConv> shared = plan_shared(planning, layer, place)) return std::move(*shared);
  const int samples = samples_per_piece(planning.batch, planning.threads);
  const bool in_pieces = !place.choose_dst && samples != planning.batch;
  if (in_pieces) {
    place.batch = samples;
    place.src = piece_of(place.src, samples);
  }
  Affine affine = plan_conv(planning.dnnl, layer, place);
  affine.pieces = planning.batch / place.batch;
  const Desc whole = activations(planning.batch, place.out, planning.type, place.format);
  const Desc dst = in_pieces ? whole : affine.dst, grad_dst = in_pieces ? whole : affine.grad_dst;
  return {std::move(affine), dst, grad_dst};
}

/// Our kernel for the weight gradient, if it may have the weights in its layout and threads can share the
/// batch.
void choose_gradient(const Planning& planning, const model::Conv2d& layer, AffinePlace& place) {
  if (planning.precision != engine::Precision::bf16 || place.choose_dst || !has_amx()) return;
  if (place.format != memory::format_tag::nhwc) return;
  if (place.master != nullptr) {
    if (!(*place.master == conv_logical_weights(layer, place.in))) return;
  } else if (planning.threads > 1 && samples_per_shared_piece(planning.batch, planning.threads) == 0) {
    return;
  }
  place.own_gradient = AmxGradient::plan(layer, place.in, place.out);
  if (place.own_gradient) place.master = nullptr;
}

}  // namespace

PlannedGroupPtr plan_conv_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::Conv2d>(0);
  if (layer == nullptr) return nullptr;
  if (PlannedGroupPtr own = plan_image_conv_group(planning, chain)) return own;
  AffinePlace place = place_of(planning, chain);
  const Planning::Weights* const wanted = planning.wanted_weights(layer->name);
  if (wanted != nullptr) place.master = &wanted->master;
  const Desc nhwc = planning.nhwc(place.in);
  const bool first = !place.wants_grad_src && has_kernels_for_planes(planning, *layer, place);
  // One-channel images are NHWC in any order.
  place.choose_dst = first && !(place.src == nhwc);
  const AffinePlace in_blocks = with_format(planning, place, format_of(planning, *layer, place, true));
  const auto* const pool = chain.as<model::MaxPool>(place.relu ? 2 : 1);
  if (PlannedGroupPtr by_fft = plan_fft_group(planning, *layer, in_blocks, pool)) return by_fft;
  place = with_format(planning, place, format_of(planning, *layer, place, false));
  if (PlannedGroupPtr fused = plan_conv_pool_group(planning, chain, place)) return fused;

  choose_gradient(planning, *layer, place);
  const Desc logical = conv_logical_weights(*layer, place.in);
  PiecedConv pieced = plan_in_pieces(planning, *layer, place);
  auto group = std::make_unique<AffineGroup>(planning, layer->name, std::move(pieced.affine), logical);
  group->contract_to_fill().src = {planning.formats(place.src)};
  group->contract_to_fill().dst = planning.formats(pieced.dst, pieced.grad_dst);
  return group;
}

}  // namespace cifar_mpi::cpu
