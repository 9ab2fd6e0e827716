#include "cpu/amx_gradient.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cifar_mpi::cpu {
namespace {

constexpr int kSide = 16;                ///< rows and fp32 columns of a tile
constexpr int kDepth = 32;               ///< bf16 values in a row of a tile
constexpr int kTile = kSide * kSide;     ///< fp32 values
constexpr int kHalves = kSide * kDepth;  ///< bf16 values
constexpr std::ptrdiff_t kLine = 64;     ///< bytes in a row of a tile, and of a cache line
constexpr std::size_t kCache =
    1280 << 10;  ///< bytes of copies that the second-level cache holds beside the sums

constexpr int up(int value, int unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

std::optional<AmxGradient> AmxGradient::plan(const model::Conv2d& layer, const Extent& in,
                                             const Extent& out) {
  const bool fits = in.channels >= kSide && out.channels >= kSide && layer.kernel <= 3 && layer.stride <= 2;
  if (!fits || layer.with_bias) return std::nullopt;
  return AmxGradient(layer, in, out);
}

AmxGradient::AmxGradient(const model::Conv2d& layer, const Extent& in, const Extent& out)
    : in_(in.channels),
      out_(out.channels),
      src_pixels_(in.height * in.width),
      dst_pixels_(out.height * out.width),
      kernel_(layer.kernel),
      in_tiles_(up(in_, kSide) / kSide),
      out_tiles_(up(out_, kSide) / kSide),
      steps_(up(dst_pixels_, kDepth) / kDepth) {
  const model::Padding rows = model::padding_of(layer, in.height),
                       columns = model::padding_of(layer, in.width);
  const int stride = layer.stride;
  const auto row_of = [&](int ky) {
    return (ky - rows.before + layer.kernel * stride) / stride;
  };  // at least 0
  const int first = row_of(0), last = row_of(layer.kernel - 1);
  const int copied = out.height + last - first;
  pitch_ = up((last - first) * out.width + steps_ * kDepth, kDepth);
  if (pitch_ / kDepth % 2 == 0) pitch_ += kDepth;  // channels then lie in different sets of the cache
  for (int phase = 0; phase < stride; ++phase) {
    for (int kx = 0; kx < layer.kernel; ++kx) {
      std::vector<std::int32_t> pixels(static_cast<std::size_t>(pitch_), -1);
      for (int r = 0; r < copied; ++r) {
        const int y = stride * (r + first - layer.kernel) + phase;
        for (int c = 0; c < out.width; ++c) {
          const int x = stride * c + kx - columns.before;
          if (y >= 0 && y < in.height && x >= 0 && x < in.width)
            pixels[static_cast<std::size_t>(r * out.width + c)] = y * in.width + x;
        }
      }
      copies_.push_back(std::move(pixels));
    }
  }
  const std::ptrdiff_t copy_values = std::ptrdiff_t{in_tiles_} * kSide * pitch_;
  for (int kx = 0; kx < layer.kernel; ++kx) {
    for (int tile = 0; tile < in_tiles_; ++tile) {
      for (int ky = 0; ky < layer.kernel; ++ky) {
        const int phase = (ky - rows.before + layer.kernel * stride) % stride;
        tiles_.push_back((phase * layer.kernel + kx) * copy_values + std::ptrdiff_t{tile} * kSide * pitch_ +
                         (row_of(ky) - first) * out.width);
      }
    }
  }
  src_values_ = copies_.size() * static_cast<std::size_t>(copy_values);
  grad_values_ = static_cast<std::size_t>(out_tiles_) * static_cast<std::size_t>(steps_) * kHalves;
  images_ = static_cast<int>(std::max(std::size_t{1}, images_at_once()));
}

/// Many sums are loaded and stored once for all images that are copied, so there are more images; then only
/// the gradient's copies stay in the cache, and those of two tiles of `src`.
std::size_t AmxGradient::images_at_once() const {
  constexpr std::size_t kManySums = 512 << 10, kSteps = 64;
  const std::size_t all = kCache / (sizeof(bf16) * (src_values_ + grad_values_));
  if (sums_floats() * sizeof(float) < kManySums) return all;
  const std::size_t two_tiles = 2 * static_cast<std::size_t>(kSide) * static_cast<std::size_t>(pitch_);
  const std::size_t most = kCache / (sizeof(bf16) * (grad_values_ + two_tiles));
  return std::max(all, std::min(kSteps / static_cast<std::size_t>(steps_), most));
}

std::size_t AmxGradient::sums_floats() const {
  return tiles_.size() * static_cast<std::size_t>(out_tiles_) * kTile;
}

std::size_t AmxGradient::scratch_bytes() const {
  return sums_floats() * sizeof(float) +
         static_cast<std::size_t>(images_) * (src_values_ + grad_values_) * sizeof(bf16);
}

void AmxGradient::run(const Memory& memory, std::byte* scratch, const std::function<void()>& progress) const {
  auto* const sums = reinterpret_cast<float*>(scratch);
  auto* const src_copies = reinterpret_cast<bf16*>(sums + sums_floats());
  bf16* const grad_copies = src_copies + static_cast<std::size_t>(images_) * src_values_;
  for (int begin = 0; begin < memory.samples; begin += images_) {
    const int images = std::min(images_, memory.samples - begin);
    for (int n = 0; n < images; ++n) {
      copy_src(memory.src + std::ptrdiff_t{begin + n} * src_pixels_ * in_,
               src_copies + static_cast<std::size_t>(n) * src_values_);
      copy_grad(memory.grad_dst + std::ptrdiff_t{begin + n} * dst_pixels_ * out_,
                grad_copies + static_cast<std::size_t>(n) * grad_values_);
    }
    multiply(src_copies, grad_copies, images, begin == 0, sums);
    progress();
  }
  store(sums, memory);
}

/// From tiles to [k, k, in, out].
void AmxGradient::store(const float* sums, const Memory& memory) const {
  for (int tap = 0; tap < kernel_ * kernel_; ++tap) {
    for (int i = 0; i < in_; ++i) {
      const std::ptrdiff_t tile =
          (std::ptrdiff_t{tap % kernel_} * in_tiles_ + i / kSide) * kernel_ + tap / kernel_;
      const float* const row = sums + tile * out_tiles_ * kTile + i % kSide * kSide;
      float* const to = memory.grad_weights + (std::ptrdiff_t{tap} * in_ + i) * out_;
      for (int first = 0; first < out_; first += kSide) {
        const float* const from = row + first / kSide * kTile;
        const int count = std::min(kSide, out_ - first);
        for (int o = 0; o < count; ++o) to[first + o] = memory.adds ? to[first + o] + from[o] : from[o];
      }
    }
  }
}

#if defined(__x86_64__)

namespace {

// Intrinsics have a mask that is always full here, because g++ 12 otherwise warns of uninitialized values in
// its own header.

/// Channels of two neighbouring pixels in turn; `none` stands for a pixel outside the image.
[[gnu::target("avx512bw,avx512vl")]] [[gnu::always_inline]] inline __m512i pair_of(const bf16* even,
                                                                                   const bf16* odd,
                                                                                   __mmask16 channels,
                                                                                   __m512i order) {
  const __m256i low = _mm256_maskz_loadu_epi16(channels, even);
  const __m256i high = _mm256_maskz_loadu_epi16(channels, odd);
  return _mm512_maskz_permutexvar_epi16(~0u, order,
                                        _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(low), high, 1));
}

/// The order of pair_of: word 2c of the result is word c of the first pixel, 2c + 1 that of the second.
[[gnu::target("avx512bw,avx512vl")]] [[gnu::always_inline]] inline __m512i pair_order() {
  alignas(64) std::array<std::uint16_t, 32> words;
  for (std::uint16_t c = 0; c < kSide; ++c) {
    words[2 * c] = c;
    words[2 * c + 1] = static_cast<std::uint16_t>(kSide + c);
  }
  return _mm512_load_si512(words.data());
}

/// Transposes 16x16 words of 32 bits.
[[gnu::target("avx512bw,avx512vl")]] [[gnu::always_inline]] inline void transpose(__m512i (&rows)[kSide]) {
  __m512i t[kSide];
  for (int i = 0; i < kSide; i += 2) {
    t[i] = _mm512_maskz_unpacklo_epi32(0xffff, rows[i], rows[i + 1]);
    t[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, rows[i], rows[i + 1]);
  }
  for (int i = 0; i < kSide; i += 4) {
    rows[i] = _mm512_maskz_unpacklo_epi64(0xff, t[i], t[i + 2]);
    rows[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, t[i], t[i + 2]);
    rows[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_maskz_shuffle_i32x4(0xffff, rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_maskz_shuffle_i32x4(0xffff, rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_maskz_shuffle_i32x4(0xffff, rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_maskz_shuffle_i32x4(0xffff, rows[i + 8], rows[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm512_maskz_shuffle_i32x4(0xffff, t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_maskz_shuffle_i32x4(0xffff, t[i], t[i + 8], 0xdd);
  }
}

constexpr __mmask16 channels_from(int first, int count) {
  return static_cast<__mmask16>(count - first >= kSide ? 0xffff : (1 << (count - first)) - 1);
}

/// 32 pixels of 16 channels become 16 rows of 32 pixels.
[[gnu::target("avx512bw,avx512vl")]] void copy_transposed(const bf16* image, int channels, int first,
                                                          const std::vector<std::int32_t>& pixels, bf16* to) {
  const __mmask16 mask = channels_from(first, channels);
  const __m512i order = pair_order();
  const int pitch = static_cast<int>(pixels.size());
  alignas(64) const bf16 zeros[kSide] = {};
  const auto at = [&](int place) __attribute__((always_inline)) {
    const std::int32_t pixel = pixels[static_cast<std::size_t>(place)];
    return pixel < 0 ? zeros : image + std::ptrdiff_t{pixel} * channels + first;
  };
  for (int begin = 0; begin < pitch; begin += kDepth) {
    __m512i rows[kSide];
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) rows[i] = pair_of(at(begin + 2 * i), at(begin + 2 * i + 1), mask, order);
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) _mm512_store_si512(to + std::ptrdiff_t{i} * pitch + begin, rows[i]);
  }
}

template <int kNumber>
[[gnu::always_inline]] inline void load_tile(const void* from, std::ptrdiff_t step) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(step), "i"(kNumber) : "memory");
}
template <int kNumber>
[[gnu::always_inline]] inline void store_tile(void* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(kLine), "i"(kNumber) : "memory");
}
template <int kNumber>
[[gnu::always_inline]] inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kNumber));
}
template <int kSum, int kA, int kB>
[[gnu::always_inline]] inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

/// All eight tiles have 16 rows of 64 bytes while it lives.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } shape;
    std::fill_n(shape.row_bytes, 8, std::uint16_t{kLine});
    std::fill_n(shape.rows, 8, std::uint8_t{kSide});
    asm volatile("ldtilecfg %0" ::"m"(shape));
  }
  ~Tiles() { asm volatile("tilerelease" ::); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <int kFirst, class Body, int... kIndex>
[[gnu::always_inline]] inline void each(const Body& body, std::integer_sequence<int, kIndex...>) {
  (body(std::integral_constant<int, kFirst + kIndex>{}), ...);
}
template <int kCount, class Body>
[[gnu::always_inline]] inline void each(const Body& body) {
  each<0>(body, std::make_integer_sequence<int, kCount>{});
}

/// The operands of a block of sums.
struct Block {
  const bf16* const* src = nullptr;              ///< [kA] tiles of the first image
  const bf16* const* grad = nullptr;             ///< [kB]
  std::ptrdiff_t src_image = 0, grad_image = 0;  ///< values from image to image
  std::ptrdiff_t row_bytes = 0;                  ///< of src
  int images = 0, steps = 0;
  bool first = false;            ///< no sums yet
  float* const* sums = nullptr;  ///< [kA, kB]
};

/// kA·kB sums, then one tile of `src` at a time, then kB tiles of the gradient.
template <int kA, int kB>
void multiply_block(const Block& block) {
  constexpr int kSums = kA * kB;
  static_assert(kSums + 1 + kB <= 8);
  each<kSums>([&](auto i) __attribute__((always_inline)) {
    if (block.first) {
      clear_tile<i>();
    } else {
      load_tile<i>(block.sums[i], kLine);
    }
  });
  for (int n = 0; n < block.images; ++n) {
    for (int step = 0; step < block.steps; ++step) {
      const std::ptrdiff_t src_at = n * block.src_image + std::ptrdiff_t{step} * kDepth;
      const std::ptrdiff_t grad_at = n * block.grad_image + std::ptrdiff_t{step} * kHalves;
      each<kB>([&](auto b) __attribute__((always_inline)) {
        load_tile<kSums + 1 + b>(block.grad[b] + grad_at, kLine);
      });
      each<kA>([&](auto a) __attribute__((always_inline)) {
        load_tile<kSums>(block.src[a] + src_at, block.row_bytes);
        each<kB>([&](auto b)
                     __attribute__((always_inline)) { multiply_tiles<a * kB + b, kSums, kSums + 1 + b>(); });
      });
    }
  }
  each<kSums>([&](auto i) __attribute__((always_inline)) { store_tile<i>(block.sums[i]); });
}

}  // namespace

void AmxGradient::copy_src(const bf16* image, bf16* to) const {
  for (const std::vector<std::int32_t>& pixels : copies_) {
    for (int tile = 0; tile < in_tiles_; ++tile, to += std::ptrdiff_t{kSide} * pitch_)
      copy_transposed(image, in_, tile * kSide, pixels, to);
  }
}

[[gnu::target("avx512bw,avx512vl")]] void AmxGradient::copy_grad(const bf16* image, bf16* to) const {
  const __m512i order = pair_order();
  alignas(64) const bf16 zeros[kSide] = {};
  for (int tile = 0; tile < out_tiles_; ++tile) {
    const __mmask16 mask = channels_from(tile * kSide, out_);
    const bf16* const from = image + tile * kSide;
    const auto at = [&](int pixel) __attribute__((always_inline)) {
      return pixel < dst_pixels_ ? from + std::ptrdiff_t{pixel} * out_ : zeros;
    };
    for (int pixel = 0; pixel < steps_ * kDepth; pixel += 2, to += kDepth)
      _mm512_store_si512(to, pair_of(at(pixel), at(pixel + 1), mask, order));
  }
}

void AmxGradient::multiply(const bf16* src, const bf16* grad, int images, bool first, float* sums) const {
  const Tiles tiles;
  const int src_tiles = static_cast<int>(tiles_.size());
  const auto block = [&]<int kA, int kB>(int a, int b, std::integral_constant<int, kA>,
                                         std::integral_constant<int, kB>) {
    const bf16* src_at[kA];
    const bf16* grad_at[kB];
    float* sums_at[kA * kB];
    for (int i = 0; i < kA; ++i) src_at[i] = src + tiles_[static_cast<std::size_t>(a + i)];
    for (int j = 0; j < kB; ++j) grad_at[j] = grad + std::ptrdiff_t{b + j} * steps_ * kHalves;
    for (int i = 0; i < kA * kB; ++i)
      sums_at[i] = sums + (std::ptrdiff_t{a + i / kB} * out_tiles_ + b + i % kB) * kTile;
    multiply_block<kA, kB>(
        {src_at, grad_at, static_cast<std::ptrdiff_t>(src_values_), static_cast<std::ptrdiff_t>(grad_values_),
         pitch_ * static_cast<std::ptrdiff_t>(sizeof(bf16)), images, steps_, first, sums_at});
  };
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  constexpr std::integral_constant<int, 3> three;
  if (out_tiles_ == 1) {
    int a = 0;
    for (; a + 3 <= src_tiles; a += 3) block(a, 0, three, one);
    for (; a < src_tiles; ++a) block(a, 0, one, one);
    return;
  }
  for (int a = 0; a < src_tiles; a += 2) {
    for (int b = 0; b < out_tiles_; b += 2) {
      const bool both_a = a + 1 < src_tiles, both_b = b + 1 < out_tiles_;
      if (both_a && both_b)
        block(a, b, two, two);
      else if (both_a)
        block(a, b, two, one);
      else if (both_b)
        block(a, b, one, two);
      else
        block(a, b, one, one);
    }
  }
}

#else

void AmxGradient::copy_src(const bf16*, bf16*) const {}
void AmxGradient::copy_grad(const bf16*, bf16*) const {}
void AmxGradient::multiply(const bf16*, const bf16*, int, bool, float*) const {}

#endif

}  // namespace cifar_mpi::cpu
