#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/batch_norm.hpp"
#include "cpu/bf16.hpp"

/// The loops of batch normalization over one image, kLanes neighbouring channels at a time. Each is a kernel
/// in the sense of simd.hpp.
namespace cifar_mpi::cpu::batch_norm {

/// kLanes neighbouring channels. Passed by reference: by value a vector's ABI depends on the instruction set.
template <int kLanes>
struct Vectors {
  typedef float Float __attribute__((vector_size(kLanes * sizeof(float))));
  typedef std::uint32_t Word __attribute__((vector_size(kLanes * sizeof(float))));
  typedef std::uint16_t Half __attribute__((vector_size(kLanes * sizeof(std::uint16_t))));
};
template <int kLanes>
using Vec = typename Vectors<kLanes>::Float;

template <int kLanes>
[[gnu::always_inline]] inline void load(const float* from, Vec<kLanes>& to) {
  std::memcpy(&to, from, sizeof(to));
}

template <int kLanes>
[[gnu::always_inline]] inline void load(const bf16* from, Vec<kLanes>& to) {
  typename Vectors<kLanes>::Half half;
  std::memcpy(&half, from, sizeof(half));
  const auto word = __builtin_convertvector(half, typename Vectors<kLanes>::Word) << 16;
  std::memcpy(&to, &word, sizeof(to));
}

template <int kLanes>
[[gnu::always_inline]] inline void store(const Vec<kLanes>& from, float* to) {
  std::memcpy(to, &from, sizeof(from));
}

/// Rounds to nearest, ties to even; NaN stays NaN.
template <int kLanes>
[[gnu::always_inline]] inline void store(const Vec<kLanes>& from, bf16* to) {
  typename Vectors<kLanes>::Word word;
  std::memcpy(&word, &from, sizeof(word));
  const auto rounded = (word + 0x7FFFu + ((word >> 16) & 1u)) >> 16;
  const auto kept = from == from ? rounded : (word >> 16) | 0x40u;
  const auto half = __builtin_convertvector(kept, typename Vectors<kLanes>::Half);
  std::memcpy(static_cast<void*>(to), &half, sizeof(half));
}

/// kLanes channels from `channel` on, in the pixels of one image: `[p]` is their address in pixel p.
template <class T>
struct Pixels {
  T* first;
  int block;

  [[gnu::always_inline]] Pixels(const BatchNormShape& shape, int image, int lies_in, int channel,
                                T* activation)
      : first(activation + std::ptrdiff_t{image} * shape.pixels * shape.channels +
              std::ptrdiff_t{channel / lies_in} * shape.pixels * lies_in + channel % lies_in),
        block(lies_in) {}
  [[gnu::always_inline]] T* operator[](int pixel) const { return first + std::ptrdiff_t{pixel} * block; }
};

template <class T>
[[gnu::always_inline]] inline Pixels<const T> pixels_of(const BatchNormShape& shape, int image, int block,
                                                        int channel, const std::byte* activation) {
  return {shape, image, block, channel, reinterpret_cast<const T*>(activation)};
}
template <class T>
[[gnu::always_inline]] inline Pixels<T> pixels_of(const BatchNormShape& shape, int image, int block,
                                                  int channel, std::byte* activation) {
  return {shape, image, block, channel, reinterpret_cast<T*>(activation)};
}

/// Inputs of the loops over an image besides activations.
struct ChannelMap {
  BatchNormShape shape;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const float* scale = nullptr;
  const float* biases = nullptr;
};

/// scale · (x − mean) · rstd + bias of kLanes channels.
template <int kLanes>
struct Map {
  Vec<kLanes> mean, rstd, scale, bias, slope;

  [[gnu::always_inline]] Map(const ChannelMap& channel_map, int channel) {
    load<kLanes>(channel_map.mean + channel, mean);
    load<kLanes>(channel_map.rstd + channel, rstd);
    scale = Vec<kLanes>{} + 1.0f;
    if (channel_map.scale != nullptr) load<kLanes>(channel_map.scale + channel, scale);
    load<kLanes>(channel_map.biases + channel, bias);
    slope = scale * rstd;
  }
};

/// Two sums over the pixels of an image, each in four chains, so that additions do not wait for each other.
template <int kLanes>
struct TwoSums {
  static constexpr int kChains = 4;
  Vec<kLanes> first[kChains] = {}, second[kChains] = {};

  /// `terms(pixel, a, b)` computes the terms of a pixel for both sums.
  template <class Terms>
  [[gnu::always_inline]] TwoSums(int pixels, const Terms& terms) {
    const auto add = [&](int chain, int pixel) __attribute__((always_inline)) {
      Vec<kLanes> a, b;
      terms(pixel, a, b);
      first[chain] += a;
      second[chain] += b;
    };
    int p = 0;
    for (; p + kChains <= pixels; p += kChains) {
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain) add(chain, p + chain);
    }
    for (; p < pixels; ++p) add(0, p);
    first[0] = (first[0] + first[1]) + (first[2] + first[3]);
    second[0] = (second[0] + second[1]) + (second[2] + second[3]);
  }
};

/// For each channel of one image: its mean, and the sum of squares around it.
template <class T, int kLanes>
struct Moments {
  [[gnu::always_inline]] static void run(const BatchNormShape& shape, int image, const std::byte* src,
                                         float* mean, float* squares) {
    for (int c = 0; c < shape.channels; c += kLanes) {
      const auto x = pixels_of<T>(shape, image, shape.src_block, c, src);
      Vec<kLanes> around;
      load<kLanes>(x[0], around);
      const TwoSums<kLanes> sums(
          shape.pixels, [&](int p, auto& value, auto& square) __attribute__((always_inline)) {
            load<kLanes>(x[p], value);
            value -= around;
            square = value * value;
          });
      const Vec<kLanes> shift = sums.first[0] / static_cast<float>(shape.pixels);
      store<kLanes>(around + shift, mean + c);
      store<kLanes>(sums.second[0] - sums.first[0] * shift, squares + c);
    }
  }
};

template <class T, int kLanes, bool kRelu>
struct Forward {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         std::byte* dst) {
    const BatchNormShape& shape = channel_map.shape;
    for (int c = 0; c < shape.channels; c += kLanes) {
      const auto x = pixels_of<T>(shape, image, shape.src_block, c, src);
      const auto y = pixels_of<T>(shape, image, shape.dst_block, c, dst);
      const Map<kLanes> map(channel_map, c);
      for (int p = 0; p < shape.pixels; ++p) {
        Vec<kLanes> value;
        load<kLanes>(x[p], value);
        value = (value - map.mean) * map.slope + map.bias;
        if constexpr (kRelu) value = value < 0.0f ? Vec<kLanes>{} : value;
        store<kLanes>(value, y[p]);
      }
    }
  }
};

/// y = max(scale · (x − mean) · rstd + bias + other, 0); `other` has the layout of `dst`.
template <class T, int kLanes>
struct ForwardSum {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         const std::byte* other, std::byte* dst) {
    const BatchNormShape& shape = channel_map.shape;
    for (int c = 0; c < shape.channels; c += kLanes) {
      const auto x = pixels_of<T>(shape, image, shape.src_block, c, src);
      const auto more = pixels_of<T>(shape, image, shape.dst_block, c, other);
      const auto y = pixels_of<T>(shape, image, shape.dst_block, c, dst);
      const Map<kLanes> map(channel_map, c);
      for (int p = 0; p < shape.pixels; ++p) {
        Vec<kLanes> value, added;
        load<kLanes>(x[p], value);
        load<kLanes>(more[p], added);
        value = (value - map.mean) * map.slope + map.bias + added;
        store<kLanes>(value < 0.0f ? Vec<kLanes>{} : value, y[p]);
      }
    }
  }
};

/// The gradient of kLanes channels of one pixel after the ReLU's mask, and x − mean.
template <bool kRelu, int kLanes, class T>
[[gnu::always_inline]] inline void load_pair(const Map<kLanes>& map, const T* x, const T* g,
                                             Vec<kLanes>& centred, Vec<kLanes>& grad) {
  load<kLanes>(x, centred);
  load<kLanes>(g, grad);
  centred -= map.mean;
  if constexpr (kRelu) grad = centred * map.slope + map.bias > 0.0f ? grad : Vec<kLanes>{};
}

/// Σ g and Σ g·x̂ of each channel of one image.
template <class T, int kLanes, bool kRelu>
struct GradSums {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         const std::byte* grad_dst, float* sums, float* products) {
    const BatchNormShape& shape = channel_map.shape;
    for (int c = 0; c < shape.channels; c += kLanes) {
      const auto x = pixels_of<T>(shape, image, shape.src_block, c, src);
      const auto g = pixels_of<T>(shape, image, shape.dst_block, c, grad_dst);
      const Map<kLanes> map(channel_map, c);
      const TwoSums<kLanes> both(
          shape.pixels, [&](int p, auto& grad, auto& product) __attribute__((always_inline)) {
            load_pair<kRelu>(map, x[p], g[p], product, grad);
            product *= grad;
          });
      store<kLanes>(both.first[0], sums + c);
      store<kLanes>(both.second[0] * map.rstd, products + c);
    }
  }
};

/// The same where g is the sum of two gradients (of one: kTwo = false) if y > 0, else 0. It is stored in
/// `joined`, which may be either of them.
template <class T, int kLanes, bool kTwo>
struct JoinedGradSums {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         const std::byte* dst, const std::byte* grad_dst,
                                         const std::byte* more_grad_dst, std::byte* joined, float* sums,
                                         float* products) {
    const BatchNormShape& shape = channel_map.shape;
    for (int c = 0; c < shape.channels; c += kLanes) {
      const auto x = pixels_of<T>(shape, image, shape.src_block, c, src);
      const auto y = pixels_of<T>(shape, image, shape.dst_block, c, dst);
      const auto a = pixels_of<T>(shape, image, shape.dst_block, c, grad_dst);
      const auto b = pixels_of<T>(shape, image, shape.dst_block, c, kTwo ? more_grad_dst : grad_dst);
      const auto g = pixels_of<T>(shape, image, shape.dst_block, c, joined);
      const Map<kLanes> map(channel_map, c);
      const TwoSums<kLanes> both(
          shape.pixels, [&](int p, auto& grad, auto& product) __attribute__((always_inline)) {
            Vec<kLanes> output, more;
            load<kLanes>(y[p], output);
            load<kLanes>(a[p], grad);
            if constexpr (kTwo) {
              load<kLanes>(b[p], more);
              grad += more;
            }
            grad = output > 0.0f ? grad : Vec<kLanes>{};
            store<kLanes>(grad, g[p]);
            load<kLanes>(g[p], grad);  // rounded, as the other loop reads it
            load<kLanes>(x[p], product);
            product = (product - map.mean) * grad;
          });
      store<kLanes>(both.first[0], sums + c);
      store<kLanes>(both.second[0] * map.rstd, products + c);
    }
  }
};

/// `sums` and `products` are those of the batch, divided by n.
template <class T, int kLanes, bool kRelu>
struct GradSrc {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         const std::byte* grad_dst, const float* sums, const float* products,
                                         std::byte* grad_src) {
    const BatchNormShape& shape = channel_map.shape;
    for (int c = 0; c < shape.channels; c += kLanes) {
      const auto x = pixels_of<T>(shape, image, shape.src_block, c, src);
      const auto g = pixels_of<T>(shape, image, shape.dst_block, c, grad_dst);
      const auto grad_x = pixels_of<T>(shape, image, shape.src_block, c, grad_src);
      const Map<kLanes> map(channel_map, c);
      Vec<kLanes> sum, product;
      load<kLanes>(sums + c, sum);
      load<kLanes>(products + c, product);
      product *= map.rstd;
      for (int p = 0; p < shape.pixels; ++p) {
        Vec<kLanes> centred, grad;
        load_pair<kRelu>(map, x[p], g[p], centred, grad);
        store<kLanes>((grad - sum - centred * product) * map.slope, grad_x[p]);
      }
    }
  }
};

}  // namespace cifar_mpi::cpu::batch_norm
