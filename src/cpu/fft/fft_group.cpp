#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "cpu/affine_group.hpp"
#include "cpu/bf16.hpp"
#include "cpu/conv.hpp"
#include "cpu/conv_pool.hpp"
#include "cpu/fft/conv_fft.hpp"
#include "cpu/parallel.hpp"
#include "cpu/pieces.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Arena;
using engine::Operands;
using fft::ConvFft;
using fft::ConvFftMemory;
using fft::SpectraShape;

using engine::ConvMethod;

ConvMethod method_of(const ConvFft& conv) { return conv.winograd ? ConvMethod::winograd : ConvMethod::fft; }

/// Parameters lie in memory in logical order.
class FftGroup final : public PlannedGroup {
 public:
  FftGroup(Planning& planning, const model::Conv2d& layer, const AffinePlace& place, const ConvFft& conv)
      : PlannedGroup(planning), conv_(conv) {
    contract_.name = layer.name;
    contract_.operations = conv.relu ? 2 : 1;
    if (conv.pool != nullptr) {
      contract_.name += " + " + conv.pool->pool.layer.name;
      ++contract_.operations;
    }
    contract_.relu_at_end = conv.relu;
    contract_.masters = {conv.weight_floats()};
    planning.weights[layer.name] = {conv_logical_weights(layer, place.in), method_of(conv)};
    if (layer.with_bias) contract_.masters.push_back(static_cast<std::size_t>(layer.out_channels));
    contract_.src = {planning.formats(place.src)};
    contract_.dst =
        planning.formats(activations(planning.batch, conv.stored_dst().extent, place.type, place.format));
    planning.text +=
        concat(contract_.name,
               conv.winograd ? ": Winograd F(4x4, 3x3)" : concat(": FFT of ", conv.length, "x", conv.length),
               conv.tiles() > 1 ? concat(" in ", conv.tiles(), " tiles") : "", ", ", name_of(conv.set), '\n');
  }

  engine::GroupTasks tasks(const Operands& operands, Arena& arena) const override {
    const bool wants_grad_weights = operands.params[0].grad != nullptr;
    const bool wants_grad_src = operands.grad_src[0] != nullptr;
    ConvFftMemory memory = memory_for(operands, arena);
    engine::GroupTasks tasks;
    tasks.prepare.push_back(plan_fft_weights(name() + " prepare", conv_, weights_of(operands), memory));
    tasks.forward.push_back(plan_fft_forward(name() + " forward", conv_, memory, biases_of(operands)));
    if (!wants_grad_weights && !wants_grad_src) return tasks;
    memory.product = take(arena, conv_.src_spectra(), conv_.concurrent);
    if (conv_.pool != nullptr)
      memory.vectors = arena.take(static_cast<std::size_t>(planning_.threads) * conv_.vector_bytes());
    if (wants_grad_weights && conv_.recomputes) {
      tasks.backward.push_back(
          plan_fft_gradients(name() + " gradients", conv_, memory, operands.params[0].grad));
      return tasks;
    }
    tasks.backward.push_back(plan_fft_data_gradient(
        name() + (wants_grad_src ? " data gradient" : " transform of the gradient"), conv_, memory));
    if (!wants_grad_weights) return tasks;
    tasks.backward.push_back(plan_fft_weight_gradient(name() + " weight gradient", conv_, memory,
                                                      operands.params[0].grad, grad_biases_of(operands)));
    return tasks;
  }

 private:
  static float* take(Arena& arena, const SpectraShape& shape, int pieces) {
    return arena.take_array<float>(shape.floats() * static_cast<std::size_t>(pieces));
  }

  /// The images' spectra live from the forward pass to the weight gradient, which reads the images again only
  /// if it recomputes their spectra or needs another transform.
  ConvFftMemory memory_for(const Operands& operands, Arena& arena) const {
    const bool trains = operands.params[0].grad != nullptr, keeps = trains && !conv_.recomputes;
    ConvFftMemory memory;
    memory.src = operands.src[0];
    memory.dst = operands.dst;
    memory.grad_dst = operands.grad_dst;
    memory.grad_src = operands.grad_src[0];
    memory.keeps_src_spectra = keeps && !conv_.gradient_reaches();  // else the weight gradient needs others
    memory.keeps_grad_dst_spectra = keeps;
    memory.weights = take(arena, conv_.weight_spectra(), 1);
    memory.src_spectra = take(arena, conv_.src_spectra(), keeps ? conv_.pieces() : conv_.concurrent);
    memory.product = take(arena, conv_.dst_spectra(), conv_.concurrent);
    if (conv_.pool != nullptr) {
      memory.vectors = arena.take(static_cast<std::size_t>(planning_.threads) * conv_.vector_bytes());
      if (trains || memory.grad_src != nullptr)
        memory.choices = arena.take_array<std::uint8_t>(conv_.choices());
    }
    if (memory.grad_src != nullptr) memory.transposed_weights = take(arena, conv_.transposed_spectra(), 1);
    if (trains || memory.grad_src != nullptr)
      memory.grad_dst_spectra = take(arena, conv_.dst_spectra(), keeps ? conv_.pieces() : conv_.concurrent);
    if (trains) memory.grad_weights_spectra = take(arena, conv_.gradient_spectra(), 1);
    return memory;
  }

  ConvFft conv_;
};

/// Channels per block of images in this format.
int block_of(dnnl::memory::format_tag format, int channels) {
  if (format == dnnl::memory::format_tag::nChw16c) return 16;
  return format == dnnl::memory::format_tag::nChw8c ? 8 : channels;
}

/// The widest vectors that blocks of these sizes fill; none if even the portable ones do not fit.
std::optional<VectorSet> set_for(int src_block, int dst_block) {
  const std::vector<VectorSet> sets = vector_sets_here();
  const auto widest = std::find_if(sets.rbegin(), sets.rend(), [&](VectorSet set) {
    return src_block % lanes_of(set) == 0 && dst_block % lanes_of(set) == 0;
  });
  return widest == sets.rend() ? std::nullopt : std::optional(*widest);
}

/// Taps that fall inside the image along one side, summed over its places.
double taps_inside(int side, int kernel) {
  const int before = model::centred_padding(side, kernel, 1).before;
  double taps = 0.0;
  for (int place = 0; place < side; ++place)
    taps += std::min(side, place - before + kernel) - std::max(0, place - before);
  return taps;
}

/// Speed-up of oneDNN's direct kernels over fp32. Kernels of 5x5: 2.0 with AVX512_BF16, 2.4 with AMX (conv2 of the
/// tutorial, all passes, oneDNN 2.6). 3x3: 1.0 to 1.3 on Zen 5, where the rule is
/// not to miss Winograd's filtering; 1.5 lies between.
double direct_speed(const ConvFft& conv, engine::Precision precision) {
  if (precision != engine::Precision::bf16) return 1.0;
  return conv.winograd ? 1.5 : 2.0;
}

/// Whether measurements confirm the rule for such layers. With 512 channels of 8x8 pixels, batch 64, 3x3
/// kernels by Fourier transforms take as long as direct ones: the weights' spectra are 109 MB, read once for each
/// piece. In bf16, direct 3x3 kernels are faster on AMX, and where channels allow our kernels only vectors of AVX2.
bool is_measured(const ConvFft& conv, engine::Precision precision) {
  const int most_pairs = conv.winograd ? 512 * 512 : 256 * 256;
  constexpr int kLeastForWinograd = 32;
  if (conv.set == VectorSet::portable) return false;
  if (conv.winograd && (conv.set != VectorSet::avx512 ||
                        std::min(conv.src.extent.channels, conv.dst.extent.channels) < kLeastForWinograd))
    return false;
  if (conv.kernel >= 5) return true;
  const bool outruns = precision == engine::Precision::fp32 || (conv.set == VectorSet::avx512 && !has_amx());
  return conv.kernel == 3 && outruns && conv.src.extent.channels * conv.dst.extent.channels <= most_pairs;
}

/// The largest slowdown() that counts as work shared well.
constexpr double kWell = 1.15;

/// Vectors of channels in `samples` images, on the side that has fewer.
std::ptrdiff_t vectors_of_piece(const ConvFft& conv, int samples) {
  return std::ptrdiff_t{samples} * std::min(conv.src_spectra().panels(), conv.dst_spectra().panels());
}

/// Larger pieces if those of `samples` leave threads idle during the transforms of images.
int shared_well(const ConvFft& conv, int samples, int threads) {
  int best = samples;
  double least = slowdown(vectors_of_piece(conv, samples), threads);
  for (int more = samples + 1; more <= conv.batch && least > kWell; ++more) {
    const double slow = slowdown(vectors_of_piece(conv, more), threads);
    if (conv.batch % more != 0 || slow >= least) continue;
    best = more;
    least = slow;
  }
  return best;
}

/// Estimates the cost of each method for a training step, in operations at the rate of large products.
///
/// Direct: the taps inside the image. FFT: the products of all frequencies, plus transforms, which are bound
/// by memory: a place of the square costs as much as 70 operations for images (90 with AVX2), and 100 for
/// weights, whose spectra are further apart. Weights are transformed once for all images, so small batches
/// stay direct.
///
/// Speed-up of 3x3 kernels over oneDNN 2.6 in fp32, all three passes and the weights' transforms, on one
/// thread of Zen 4 (256-bit pipes), as measured (medians of 2 to 5 alternating pairs; single ones with AVX2
/// were up to 0.5 apart, at batch 16 up to 1.0) and as estimated:
///
///   image  channels   AVX-512, batch 16, 64, 128   estimate       AVX2, batch 16, 64, 128   estimate
///   32x32        16        1.5   1.6   1.6      1.18 1.22 1.23       1.2   1.2   1.2       1.0  1.0  1.0
///   32x32        64        2.7   2.5   2.4      2.2  2.4  2.4        1.4   1.5    -        2.1  2.2  2.2
///   16x16        32        1.9   2.2   2.1      1.4  1.6  1.7        1.5   1.4   1.4       1.3  1.5  1.5
///   16x16       128        2.2   2.5   2.6      2.0  2.5  2.6        1.4   1.8    -        1.9  2.4  2.5
///    8x8         64        1.6   2.4   2.4      0.9  1.6  1.8        1.4   1.7   1.8       0.9  1.5  1.7
///    8x8        256        1.1   2.0   2.3      1.0  1.9  2.3        1.0   1.4    -        1.0  1.9  2.2
///    4x4        512        0.4   0.9   1.0      0.3  0.6  0.8        0.4   0.6    -        0.3  0.6  0.7
///
/// All layers that it accepts, from 1.2 on, were faster by as much; it also rejects some that were. On a Xeon
/// with two 512-bit pipes a version that waited for memory more often was 1.3 to 1.7 times as fast from 32
/// channels and batch 64 on.
///
/// Winograd's filtering is estimated in the same way. A place costs 40 operations for images and 50 for weights
/// with AVX-512 (0.15 and 0.19 ns on one thread of Zen 5). The rule takes it only there, and from 32 channels on.
/// Milliseconds of all three passes and the transforms of weights on one thread of Zen 5 beside other programs,
/// batch 128, three runs in turn with the Fourier transforms:
///
///   image  channels   Winograd         Fourier
///   32x32        16   7.9  8.7  8.4    8.2  6.9  6.7
///   16x16        32   4.5  4.4  4.1    5.2  5.4  5.4
///    8x8         64   4.2  3.8  2.9    5.9  6.1  4.8
///
/// On images of one tile direct kernels do not reach the rate of large products. With 256 channels of 3x3 pixels, as
/// at the end of `fast94`, the same in two runs in turn with direct kernels:
///
///   batch   Winograd       direct
///      64    7.9   8.6    12.7  12.5
///     128   14.7  14.2    21.8  24.3
///     256   36.3  28.5    55.1  54.7
///
/// Each part is weighted by how much longer its busiest thread takes than with perfect sharing; direct
/// kernels share work well.
double passes_of(bool wants_grad_src) { return wants_grad_src ? 3.0 : 2.0; }

double direct_cost(const ConvFft& conv, bool wants_grad_src, engine::Precision precision) {
  const double pairs = static_cast<double>(conv.src.extent.channels) * conv.dst.extent.channels;
  const double taps =
      taps_inside(conv.src.extent.height, conv.kernel) * taps_inside(conv.src.extent.width, conv.kernel);
  const double slower = conv.winograd && conv.tiles() == 1 ? 1.5 : 1.0;
  return slower * passes_of(wants_grad_src) * 2.0 * taps * conv.batch * pairs / direct_speed(conv, precision);
}

double transforms_cost(const ConvFft& conv, bool wants_grad_src, int threads) {
  const double image_place = conv.winograd ? 40.0 : conv.set == VectorSet::avx512 ? 70.0 : 90.0;
  const double weight_place = conv.winograd ? 50.0 : 100.0, product_operations = conv.winograd ? 2.0 : 6.0;
  const double passes = passes_of(wants_grad_src);
  const double in = conv.src.extent.channels, out = conv.dst.extent.channels, batch = conv.batch;
  const double pairs = in * out;
  const std::ptrdiff_t piece_tiles = conv.product_tiles(conv.samples * conv.tiles());
  const double of_pieces = slowdown(conv.pieces(), conv.concurrent);
  const double of_products = conv.concurrent > 1 ? of_pieces : slowdown(conv.slots() * piece_tiles, threads);
  const double of_transforms =
      conv.concurrent > 1 ? of_pieces : slowdown(vectors_of_piece(conv, conv.samples), threads);
  const double products =
      of_products * passes * product_operations * conv.slots() * batch * conv.tiles() * pairs;
  const double images = wants_grad_src ? 2.0 * (in + out) : in + 2.0 * out;
  const double square = conv.length * conv.length;
  const double of_images = of_transforms * image_place * batch * conv.tiles() * images;
  const double of_weights =
      slowdown(static_cast<std::ptrdiff_t>(pairs) / conv.lanes(), threads) * weight_place * passes * pairs;
  return products + square * (of_images + of_weights);
}

/// Whether transforming the images again costs less than keeping their spectra: if the sums of the weight
/// gradient, which are read and written once per piece, stay in the cache of a core. All passes took 0.88 of
/// the time with 16 channels of 32x32 pixels, 0.98 with 32 of 16x16 and 1.15 with 64 of 8x8 (batch 128, one
/// thread of a Xeon with a cache of 2 MiB); resnet20 needs 70 MiB less.
bool recomputes(ConvFft conv) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  conv.recomputes = true;
  return conv.gradient_spectra().floats() * sizeof(float) <= kMostBytes;
}

std::optional<ConvFft> plan_conv_fft(const Planning& planning, const model::Conv2d& layer,
                                     const AffinePlace& place, ConvMethod method, int threads) {
  const bool winograd = method == ConvMethod::winograd;
  // No point of winograd.hpp is 1, so no slot holds the sum that is the gradient of a bias.
  if (winograd && (layer.kernel != 3 || layer.with_bias)) return std::nullopt;
  const int src_block = block_of(place.format, place.in.channels);
  const int dst_block = block_of(place.format, place.out.channels);
  const std::optional<VectorSet> set = set_for(src_block, dst_block);
  if (layer.stride != 1 || !set) return std::nullopt;
  if (!winograd && fft::tiling_for(place.in, layer.kernel, planning.precision).length == 0)
    return std::nullopt;
  const std::size_t value_bytes =
      planning.precision == engine::Precision::bf16 ? sizeof(bf16) : sizeof(float);
  ConvFft conv;
  conv.set = *set;
  conv.batch = planning.batch;
  conv.kernel = layer.kernel;
  conv.src = {place.in, src_block, value_bytes};
  conv.dst = {place.out, dst_block, value_bytes};
  conv.relu = place.relu;
  conv.winograd = winograd;
  conv = fft::with_kernels(std::move(conv), planning.precision);
  // The spectra of the weights are read once per piece, so with more of them pieces are larger. Products of 64 and 64
  // channels took 0.67 of the time with 32 rows instead of 16, with 64 and 256 channels 0.89. With 256 and 256 channels
  // the weight gradient took 0.93 of the time with 128 rows instead of 64 (one thread of Zen 5). Winograd's filtering of
  // 32 channels took 0.84 of the time with 64 rows instead of 16.
  const int least_rows = winograd && threads == 1 ? 64 : 32;
  const int rows = std::max(least_rows, std::min(place.in.channels, place.out.channels) / 2);
  constexpr int kPiecesPerThread = 8;  // fewer would leave an idle thread little to help with
  conv.samples = samples_per_piece(planning.batch, 1, conv.tiles(), rows);
  if (threads == 1) {
    conv.recomputes = !layer.with_bias && recomputes(conv);
    return conv;
  }
  if (conv.pieces() >= kPiecesPerThread * threads && slowdown(conv.pieces(), threads) <= kWell) {
    conv.concurrent = threads;
  } else {
    conv.samples = shared_well(conv, samples_per_piece(planning.batch, threads, conv.tiles(), rows), threads);
  }
  return conv;
}

/// The pooling, if its blocks are vectors of the convolution.
std::shared_ptr<const fft::PoolAfter> plan_pool_after(const Planning& planning, const model::MaxPool* layer,
                                                      const ConvFft& conv, const AffinePlace& place) {
  if (layer == nullptr || conv.dst.block != conv.lanes()) return nullptr;
  const std::optional<PlannedPool> planned = plan_pool(
      *layer, planning.batch, activations(planning.batch, place.out, place.type, place.format), place.out);
  if (!planned || planned->pool.set != conv.set) return nullptr;
  return std::make_shared<const fft::PoolAfter>(
      fft::PoolAfter{planned->pool, plan_block_pool(planned->pool)});
}

}  // namespace

PlannedGroupPtr plan_fft_group(Planning& planning, const model::Conv2d& layer, const AffinePlace& place,
                               const model::MaxPool* pool) {
  if (planning.conv == ConvMethod::direct || place.choose_dst || layer.valid) return nullptr;
  const int threads = planning.conv_threads;
  const Planning::Weights* const wanted = planning.wanted_weights(layer.name);
  const ConvMethod asked = wanted != nullptr ? wanted->method : planning.conv;
  constexpr double kAhead = 1.2;
  std::optional<ConvMethod> best;
  double least = std::numeric_limits<double>::infinity();
  for (const ConvMethod method : {ConvMethod::winograd, ConvMethod::fft}) {
    if (wanted != nullptr && asked != method) continue;
    const std::optional<ConvFft> judged = plan_conv_fft(planning, layer, place, method, threads);
    if (!judged) continue;
    const double cost = asked == method ? 0.0 : transforms_cost(*judged, place.wants_grad_src, threads);
    const bool is_ahead = is_measured(*judged, planning.precision) &&
                          kAhead * cost <= direct_cost(*judged, place.wants_grad_src, planning.precision);
    if (asked != method && (asked == ConvMethod::fft || !is_ahead || cost >= least)) continue;
    best = method;
    least = cost;
  }
  if (!best) return nullptr;
  ConvFft conv = *plan_conv_fft(planning, layer, place, *best, planning.threads);
  conv.pool = plan_pool_after(planning, pool, conv, place);
  return std::make_unique<FftGroup>(planning, layer, place, conv);
}

}  // namespace cifar_mpi::cpu
