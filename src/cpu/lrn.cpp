#include "cpu/lrn.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/bf16.hpp"
#include "cpu/lrn_versions.hpp"
#include "cpu/parallel.hpp"
#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {
namespace {

// A tile is a few pixels of one image as rows of channels. Rows are aligned to cache lines and surrounded by
// zeros, so that a window that leaves its row reads zeros and the loops need no edges. The lanes of a vector
// are channels, kLanes of them in the innermost loops. Unaligned packed rows (68 floats apart instead of 80)
// and memset for the gaps of every tile took a third more time.
constexpr int kTilePixels = 16;
constexpr int kLanes = 16;
constexpr int kTileFloats = 2048;

struct Tile {
  alignas(64) float floats[kTileFloats];
};

constexpr int rounded_up(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

[[gnu::always_inline]] inline int gap(const Lrn& lrn) { return rounded_up(lrn.radius); }
[[gnu::always_inline]] inline int row(const Lrn& lrn) { return rounded_up(lrn.shape.channels) + gap(lrn); }
[[gnu::always_inline]] inline int tile_pixels(const Lrn& lrn) {
  return std::min(kTilePixels, (kTileFloats - gap(lrn)) / row(lrn));
}

/// Pixels [first, first + count) of one image.
struct Place {
  int image = 0;
  int first = 0;
  int count = 0;
};

/// Place of `channel` at the first pixel of a tile in an activation of block size `block`; the next pixel is
/// `block` further.
[[gnu::always_inline]] inline std::ptrdiff_t offset_of(const Lrn& lrn, const Place& at, int block,
                                                       int channel) {
  const std::ptrdiff_t pixels = lrn.shape.pixels;
  return at.image * pixels * lrn.shape.channels + (channel / block * pixels + at.first) * block +
         channel % block;
}

/// Copies between an activation and the rows of a tile, kStrip channels at a time that are neighbours in
/// both.
template <int kStrip, class T>
[[gnu::always_inline]] inline void load_strips(const Lrn& lrn, const Place& at, int block, const T* src,
                                               float* rows) {
  for (int channel = 0; channel < lrn.shape.channels; channel += kStrip) {
    const T* from = src + offset_of(lrn, at, block, channel);
    float* to = rows + channel;
    for (int p = 0; p < at.count; ++p, from += block, to += row(lrn)) {
      for (int i = 0; i < kStrip; ++i) to[i] = to_float(from[i]);
    }
  }
}

template <int kStrip, class T>
[[gnu::always_inline]] inline void store_strips(const Lrn& lrn, const Place& at, int block, const float* rows,
                                                T* dst) {
  for (int channel = 0; channel < lrn.shape.channels; channel += kStrip) {
    const float* from = rows + channel;
    T* to = dst + offset_of(lrn, at, block, channel);
    for (int p = 0; p < at.count; ++p, from += row(lrn), to += block) {
      for (int i = 0; i < kStrip; ++i) to[i] = from_float<T>(from[i]);
    }
  }
}

template <class T>
[[gnu::always_inline]] inline void load(const Lrn& lrn, const Place& at, int block, const T* src,
                                        float* rows) {
  if (block % kLanes == 0) {
    load_strips<kLanes>(lrn, at, block, src, rows);
  } else if (block % 8 == 0) {
    load_strips<8>(lrn, at, block, src, rows);
  } else {
    load_strips<1>(lrn, at, block, src, rows);
  }
}

template <class T>
[[gnu::always_inline]] inline void store(const Lrn& lrn, const Place& at, int block, const float* rows,
                                         T* dst) {
  if (block % kLanes == 0) {
    store_strips<kLanes>(lrn, at, block, rows, dst);
  } else if (block % 8 == 0) {
    store_strips<8>(lrn, at, block, rows, dst);
  } else {
    store_strips<1>(lrn, at, block, rows, dst);
  }
}

/// Where results can be written directly, or null if they need a tile: channels are not contiguous, or bf16
/// (converting in the computing loop makes g++ 12 give up vectors: 0.67 ms instead of 0.33).
template <class T>
[[gnu::always_inline]] inline float* direct_target(int block, std::byte* data) {
  return std::is_same_v<T, float> && block % kLanes == 0 ? reinterpret_cast<float*>(data) : nullptr;
}

/// The tile's first row.
[[gnu::always_inline]] inline float* rows_of(const Lrn& lrn, Tile& tile) { return tile.floats + gap(lrn); }

template <int kRadius>
[[gnu::always_inline]] inline float squares_around(const float* x, int radius) {
  const int reach = kRadius > 0 ? kRadius : radius;
  float sum = 0.0f;
  for (int d = -reach; d <= reach; ++d) sum += x[d] * x[d];
  return sum;
}

template <int kRadius>
[[gnu::always_inline]] inline float sum_around(const float* x, int radius) {
  const int reach = kRadius > 0 ? kRadius : radius;
  float sum = 0.0f;
  for (int d = -reach; d <= reach; ++d) sum += x[d];
  return sum;
}

/// s^(−beta), with two square roots when beta is 3/4.
template <bool kThreeQuarters>
[[gnu::always_inline]] inline float power(float s, float beta) {
  if constexpr (!kThreeQuarters) return std::pow(s, -beta);
  const float root = std::sqrt(s);
  return 1.0f / (root * std::sqrt(root));
}

template <class T, int kRadius, bool kThreeQuarters>
struct Forward {
  /// kLanes channels of every pixel of a tile; the next pixel of y is `y_stride` further.
  [[gnu::always_inline]] static void strip(const Lrn& lrn, int count, const float* x, float* y,
                                           int y_stride) {
    const float bias = lrn.bias, alpha = lrn.alpha, beta = lrn.beta;
    for (int p = 0; p < count; ++p, x += row(lrn), y += y_stride) {
      for (int i = 0; i < kLanes; ++i) {
        const float s = bias + alpha * squares_around<kRadius>(x + i, lrn.radius);
        y[i] = x[i] * power<kThreeQuarters>(s, beta);
      }
    }
  }

  [[gnu::always_inline]] static void run(const Lrn& lrn, int image, const std::byte* src, std::byte* dst) {
    const LrnShape& shape = lrn.shape;
    float* direct = direct_target<T>(shape.dst_block, dst);
    Tile x_tile = {}, y_tile;
    float* x = rows_of(lrn, x_tile);
    for (int first = 0; first < shape.pixels; first += tile_pixels(lrn)) {
      const Place at{image, first, std::min(tile_pixels(lrn), shape.pixels - first)};
      load(lrn, at, shape.src_block, reinterpret_cast<const T*>(src), x);
      for (int c = 0; c < shape.channels; c += kLanes) {
        float* y = direct ? direct + offset_of(lrn, at, shape.dst_block, c) : y_tile.floats + c;
        strip(lrn, at.count, x + c, y, direct ? shape.dst_block : row(lrn));
      }
      if (!direct) store(lrn, at, shape.dst_block, y_tile.floats, reinterpret_cast<T*>(dst));
    }
  }
};

template <class T, int kRadius, bool kThreeQuarters>
struct Backward {
  /// Replaces g by g·s^(−beta) and writes q = g·x·s^(−beta−1).
  [[gnu::always_inline]] static void weigh(const Lrn& lrn, int count, const float* x, float* g, float* q) {
    const float bias = lrn.bias, alpha = lrn.alpha, beta = lrn.beta;
    for (int p = 0; p < count; ++p, x += row(lrn), g += row(lrn), q += row(lrn)) {
      for (int i = 0; i < kLanes; ++i) {
        const float s = bias + alpha * squares_around<kRadius>(x + i, lrn.radius);
        const float weighted = g[i] * power<kThreeQuarters>(s, beta);
        g[i] = weighted;
        // Padding lanes stay zero, even with a bias of 0.
        q[i] = x[i] == 0.0f ? 0.0f : weighted * x[i] / s;
      }
    }
  }

  [[gnu::always_inline]] static void strip(const Lrn& lrn, int count, const float* x, const float* g,
                                           const float* q, float* grad, int grad_stride) {
    const float factor = 2.0f * lrn.alpha * lrn.beta;
    const float floor = lrn.mask_relu ? 0.0f : -std::numeric_limits<float>::infinity();
    for (int p = 0; p < count; ++p, x += row(lrn), g += row(lrn), q += row(lrn), grad += grad_stride) {
      for (int i = 0; i < kLanes; ++i) {
        const float value = g[i] - factor * x[i] * sum_around<kRadius>(q + i, lrn.radius);
        grad[i] = x[i] <= floor ? 0.0f : value;
      }
    }
  }

  [[gnu::always_inline]] static void run(const Lrn& lrn, int image, const std::byte* src,
                                         const std::byte* grad_dst, std::byte* grad_src) {
    const LrnShape& shape = lrn.shape;
    float* direct = direct_target<T>(shape.src_block, grad_src);
    Tile x_tile = {}, g_tile = {}, q_tile = {}, y_tile;
    float *x = rows_of(lrn, x_tile), *g = rows_of(lrn, g_tile), *q = rows_of(lrn, q_tile);
    for (int first = 0; first < shape.pixels; first += tile_pixels(lrn)) {
      const Place at{image, first, std::min(tile_pixels(lrn), shape.pixels - first)};
      load(lrn, at, shape.src_block, reinterpret_cast<const T*>(src), x);
      load(lrn, at, shape.dst_block, reinterpret_cast<const T*>(grad_dst), g);
      for (int c = 0; c < shape.channels; c += kLanes) weigh(lrn, at.count, x + c, g + c, q + c);
      for (int c = 0; c < shape.channels; c += kLanes) {
        float* grad = direct ? direct + offset_of(lrn, at, shape.src_block, c) : y_tile.floats + c;
        strip(lrn, at.count, x + c, g + c, q + c, grad, direct ? shape.src_block : row(lrn));
      }
      if (!direct) store(lrn, at, shape.src_block, y_tile.floats, reinterpret_cast<T*>(grad_src));
    }
  }
};

/// The version of `Direction` for this element type, radius and exponent.
template <template <class, int, bool> class Direction, class T>
auto choose_for(const Lrn& lrn) {
  constexpr int kTutorial = 4;
  if (lrn.beta != 0.75f) return best_version<Direction<T, 0, false>>();
  return lrn.radius == kTutorial ? best_version<Direction<T, kTutorial, true>>()
                                 : best_version<Direction<T, 0, true>>();
}

template <template <class, int, bool> class Direction>
auto choose(const Lrn& lrn, engine::Precision precision) {
  return precision == engine::Precision::bf16 ? choose_for<Direction, bf16>(lrn)
                                              : choose_for<Direction, float>(lrn);
}

Lrn checked(const std::string& name, const model::LocalResponseNorm& layer, const LrnShape& shape,
            bool mask_relu) {
  const Lrn lrn{shape, layer.depth_radius, layer.bias, layer.alpha, layer.beta, mask_relu};
  if (shape.batch < 0 || shape.pixels < 1 || shape.channels < 1 || shape.src_block < 1 ||
      shape.dst_block < 1 || shape.channels % shape.src_block != 0 || shape.channels % shape.dst_block != 0 ||
      lrn.radius < 0) {
    throw std::logic_error(concat(name, ": blocks of ", shape.src_block, " and ", shape.dst_block,
                                  " do not divide ", shape.channels, " channels"));
  }
  if (tile_pixels(lrn) < 1) {
    throw Error(ErrorKind::usage, name, ": normalisation over ", shape.channels, " channels with radius ",
                lrn.radius, " does not fit the ", kTileFloats, " floats of a tile; use fewer channels");
  }
  return lrn;
}

engine::Bytes activation(const std::byte* data, const LrnShape& shape, engine::Precision precision) {
  const std::size_t bytes = precision == engine::Precision::bf16 ? sizeof(bf16) : sizeof(float);
  return {data, bytes * static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(shape.pixels) *
                    static_cast<std::size_t>(shape.channels)};
}

}  // namespace

engine::Task plan_lrn_forward(const std::string& name, const model::LocalResponseNorm& layer,
                              const LrnShape& shape, engine::Precision precision, const std::byte* src,
                              std::byte* dst) {
  const Lrn lrn = checked(name, layer, shape, false);
  LrnForwardImage run_image = lrn_forward_avx512(lrn, precision);
  if (run_image == nullptr) run_image = choose<Forward>(lrn, precision);
  engine::Task task;
  task.name = name;
  task.reads = {activation(src, shape, precision)};
  task.writes = {activation(dst, shape, precision)};
  task.start = [=](engine::Lane&) {
    parallel_for(lrn.shape.batch,
                 [&](std::ptrdiff_t image) { run_image(lrn, static_cast<int>(image), src, dst); });
  };
  return task;
}

engine::Task plan_lrn_backward(const std::string& name, const model::LocalResponseNorm& layer,
                               const LrnShape& shape, engine::Precision precision, const std::byte* src,
                               const std::byte* grad_dst, std::byte* grad_src, bool mask_relu) {
  const Lrn lrn = checked(name, layer, shape, mask_relu);
  LrnBackwardImage run_image = lrn_backward_avx512(lrn, precision);
  if (run_image == nullptr) run_image = choose<Backward>(lrn, precision);
  engine::Task task;
  task.name = name;
  task.reads = {activation(src, shape, precision), activation(grad_dst, shape, precision)};
  task.writes = {activation(grad_src, shape, precision)};
  task.start = [=](engine::Lane&) {
    parallel_for(lrn.shape.batch, [&](std::ptrdiff_t image) {
      run_image(lrn, static_cast<int>(image), src, grad_dst, grad_src);
    });
  };
  return task;
}

}  // namespace cifar_mpi::cpu
