#pragma once

#include <cstddef>
#include <type_traits>

#include "cpu/batch_norm.hpp"
#include "cpu/batch_norm_span.hpp"
#include "cpu/vector_math.hpp"

/// The loops of batch normalization over one image, some channels at a time. Each is a kernel in the sense of simd.hpp.
namespace cifar_mpi::cpu::batch_norm {

/// The spans of some channels in all pixels of one image: `[i]` is the address of the i-th.
template <class T>
struct Row {
  T* first;
  int step;

  [[gnu::always_inline]] T* operator[](int i) const { return first + std::ptrdiff_t{i} * step; }
};

template <class S, class Byte>
[[gnu::always_inline]] inline auto row_of(const BatchNormShape& shape, int image, int block, int channel,
                                          Byte* activation) {
  using T = std::conditional_t<std::is_const_v<Byte>, const typename S::T, typename S::T>;
  const std::ptrdiff_t first = std::ptrdiff_t{image} * shape.pixels * shape.channels +
                               std::ptrdiff_t{channel / block} * shape.pixels * block + channel % block;
  return Row<T>{reinterpret_cast<T*>(activation) + first, block * S::kPixels};
}

/// Inputs of the loops over an image besides activations.
struct ChannelMap {
  BatchNormShape shape;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const float* scale = nullptr;
  const float* biases = nullptr;
};

/// scale · (x − mean) · rstd + bias of a span.
template <class S>
struct Map {
  S mean, rstd, bias, slope;

  [[gnu::always_inline]] Map(const ChannelMap& channel_map, int channel)
      : mean(channel_map.mean + channel),
        rstd(channel_map.rstd + channel),
        bias(channel_map.biases + channel),
        slope(rstd) {
    if (channel_map.scale != nullptr) slope.multiply_by(S(channel_map.scale + channel));
  }
};

/// Two sums over the pixels of an image for each channel of a row of spans, each in four chains of pixels, so that
/// additions do not wait for each other.
template <class S>
struct TwoSums {
  static constexpr int kChains = 4 / S::kPixels;
  S first, second;

  /// `terms(span, a, b)` computes the terms of a span for both sums.
  template <class Terms>
  [[gnu::always_inline]] TwoSums(int pixels, const Terms& terms) {
    S firsts[kChains], seconds[kChains];
    const auto add = [&](int chain, int span) __attribute__((always_inline)) {
      S a, b;
      terms(span, a, b);
      for (int i = 0; i < S::kParts; ++i) {
        firsts[chain].part[i] += a.part[i];
        seconds[chain].part[i] += b.part[i];
      }
    };
    const int spans = pixels / S::kPixels;
    int n = 0;
    for (; n + kChains <= spans; n += kChains) {
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain) add(chain, n + chain);
    }
    for (; n < spans; ++n) add(0, n);
    total(firsts, first);
    total(seconds, second);
  }

 private:
  [[gnu::always_inline]] static void total(S (&chains)[kChains], S& sum) {
    for (S& chain : chains) chain.sum_pixels();
    for (int i = 0; i < S::kParts; ++i) {
      sum.part[i] = chains[0].part[i] + chains[1].part[i];
      if constexpr (kChains == 4) sum.part[i] += chains[2].part[i] + chains[3].part[i];
    }
  }
};

/// For each channel of one image: its mean, and the sum of squares around it.
template <class S>
struct Moments {
  [[gnu::always_inline]] static void run(const BatchNormShape& shape, int image, const std::byte* src,
                                         float* mean, float* squares) {
    for (int c = 0; c < shape.channels; c += S::kChannels) {
      const auto x = row_of<S>(shape, image, shape.src_block, c, src);
      S around;
      around.load(x[0]);
      around.store_channels(mean + c);
      around = S(mean + c);  // the first pixel's in all of them
      TwoSums<S> sums(
          shape.pixels, [&](int n, S& value, S& square) __attribute__((always_inline)) {
            value.load(x[n]);
            for (int i = 0; i < S::kParts; ++i) {
              value.part[i] -= around.part[i];
              square.part[i] = value.part[i] * value.part[i];
            }
          });
      for (int i = 0; i < S::kParts; ++i) {
        const auto shift = sums.first.part[i] / static_cast<float>(shape.pixels);
        around.part[i] += shift;
        sums.second.part[i] -= sums.first.part[i] * shift;
      }
      around.store_channels(mean + c);
      sums.second.store_channels(squares + c);
    }
  }
};

/// y = f(scale · (x − mean) · rstd + bias), with kSum f(… + other), in the layout of `dst`; f is the activation.
template <class S, Activation kThen, bool kSum>
struct Apply {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         const std::byte* other, std::byte* dst) {
    const BatchNormShape& shape = channel_map.shape;
    const int spans = shape.pixels / S::kPixels;
    for (int c = 0; c < shape.channels; c += S::kChannels) {
      const auto x = row_of<S>(shape, image, shape.src_block, c, src);
      const auto more = row_of<S>(shape, image, shape.dst_block, c, kSum ? other : src);
      const auto y = row_of<S>(shape, image, shape.dst_block, c, dst);
      const Map<S> map(channel_map, c);
      for (int n = 0; n < spans; ++n) {
        S value, added;
        value.load(x[n]);
        if constexpr (kSum) added.load(more[n]);
        for (int i = 0; i < S::kParts; ++i) {
          auto& v = value.part[i];
          v = (v - map.mean.part[i]) * map.slope.part[i] + map.bias.part[i];
          if constexpr (kSum) v += added.part[i];
          if constexpr (kThen == Activation::relu) v = v < 0.0f ? typename S::Float{} : v;
          if constexpr (kThen == Activation::silu) v = silu_of<false>(v);
        }
        value.store(y[n]);
      }
    }
  }
};

/// The gradient of a span times the slope of the activation, and x − mean.
template <Activation kThen, class S>
[[gnu::always_inline]] inline void load_pair(const Map<S>& map, const typename S::T* x,
                                             const typename S::T* g, S& centred, S& grad) {
  centred.load(x);
  grad.load(g);
  for (int i = 0; i < S::kParts; ++i) {
    centred.part[i] -= map.mean.part[i];
    if constexpr (kThen != Activation::none) {
      const typename S::Float z = centred.part[i] * map.slope.part[i] + map.bias.part[i];
      if constexpr (kThen == Activation::relu) grad.part[i] = z > 0.0f ? grad.part[i] : typename S::Float{};
      if constexpr (kThen == Activation::silu) grad.part[i] *= silu_of<true>(z);
    }
  }
}

/// Σ g and Σ g·x̂ of each channel of one image. After a SiLU also stores g in `joined`, in the layout of `src`, because
/// reading it takes less time than computing the slope again.
template <class S, Activation kThen>
struct GradSums {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         const std::byte* grad_dst, [[maybe_unused]] std::byte* joined,
                                         float* sums, float* products) {
    const BatchNormShape& shape = channel_map.shape;
    for (int c = 0; c < shape.channels; c += S::kChannels) {
      const auto x = row_of<S>(shape, image, shape.src_block, c, src);
      const auto g = row_of<S>(shape, image, shape.dst_block, c, grad_dst);
      const Map<S> map(channel_map, c);
      TwoSums<S> both(
          shape.pixels, [&](int n, S& grad, S& product) __attribute__((always_inline)) {
            load_pair<kThen>(map, x[n], g[n], product, grad);
            if constexpr (kThen == Activation::silu) {
              grad.round();  // as the other loop reads it
              grad.store_rounded(row_of<S>(shape, image, shape.src_block, c, joined)[n]);
            }
            product.multiply_by(grad);
          });
      both.second.multiply_by(map.rstd);
      both.first.store_channels(sums + c);
      both.second.store_channels(products + c);
    }
  }
};

/// The same where g is the sum of two gradients (of one: kTwo = false) if y > 0, else 0. It is stored in
/// `joined`, which may be either of them.
template <class S, bool kTwo>
struct JoinedGradSums {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         const std::byte* dst, const std::byte* grad_dst,
                                         const std::byte* more_grad_dst, std::byte* joined, float* sums,
                                         float* products) {
    const BatchNormShape& shape = channel_map.shape;
    for (int c = 0; c < shape.channels; c += S::kChannels) {
      const auto x = row_of<S>(shape, image, shape.src_block, c, src);
      const auto y = row_of<S>(shape, image, shape.dst_block, c, dst);
      const auto a = row_of<S>(shape, image, shape.dst_block, c, grad_dst);
      const auto b = row_of<S>(shape, image, shape.dst_block, c, kTwo ? more_grad_dst : grad_dst);
      const auto g = row_of<S>(shape, image, shape.dst_block, c, joined);
      const Map<S> map(channel_map, c);
      TwoSums<S> both(
          shape.pixels, [&](int n, S& grad, S& product) __attribute__((always_inline)) {
            S output, more;
            output.load(y[n]);
            grad.load(a[n]);
            if constexpr (kTwo) more.load(b[n]);
            for (int i = 0; i < S::kParts; ++i) {
              if constexpr (kTwo) grad.part[i] += more.part[i];
              grad.part[i] = output.part[i] > 0.0f ? grad.part[i] : typename S::Float{};
            }
            grad.round();  // as the other loop reads it
            grad.store_rounded(g[n]);
            product.load(x[n]);
            for (int i = 0; i < S::kParts; ++i)
              product.part[i] = (product.part[i] - map.mean.part[i]) * grad.part[i];
          });
      both.second.multiply_by(map.rstd);
      both.first.store_channels(sums + c);
      both.second.store_channels(products + c);
    }
  }
};

/// `sums` and `products` are those of the batch, divided by n.
template <class S, Activation kThen>
struct GradSrc {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         const std::byte* grad_dst, const float* sums, const float* products,
                                         std::byte* grad_src) {
    const BatchNormShape& shape = channel_map.shape;
    const int spans = shape.pixels / S::kPixels;
    for (int c = 0; c < shape.channels; c += S::kChannels) {
      const auto x = row_of<S>(shape, image, shape.src_block, c, src);
      const auto g = row_of<S>(shape, image, shape.dst_block, c, grad_dst);
      const auto grad_x = row_of<S>(shape, image, shape.src_block, c, grad_src);
      const Map<S> map(channel_map, c);
      const S sum(sums + c);
      S product(products + c);
      product.multiply_by(map.rstd);
      for (int n = 0; n < spans; ++n) {
        S centred, grad;
        load_pair<kThen>(map, x[n], g[n], centred, grad);
        for (int i = 0; i < S::kParts; ++i) {
          auto& v = grad.part[i];
          v = (v - sum.part[i] - centred.part[i] * product.part[i]) * map.slope.part[i];
        }
        grad.store(grad_x[n]);
      }
    }
  }
};

}  // namespace cifar_mpi::cpu::batch_norm
