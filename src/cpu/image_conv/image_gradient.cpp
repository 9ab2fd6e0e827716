#include <algorithm>
#include <cstring>

#include "cifar_mpi/model/layer.hpp"
#include "cpu/image_conv/image_kernels.hpp"
#include "cpu/vectors.hpp"

// The vectorized weight gradient, see image_kernels.hpp.
//
// Limit: a permutation and a multiplication per pooled place, tap and vector of channels. A vector of 16
// holds all candidates. A vector of 8 holds the first 8; each further candidate is broadcast and multiplied
// by gradients that are zero where another candidate was chosen.
namespace cifar_mpi::cpu {
namespace {

constexpr int kEntries = 16;      ///< of a table
constexpr int kBlockPlaces = 36;  ///< pooled places whose gradients and tables stay in the first cache
constexpr int kMostTaps = 5;      ///< of a tile

/// The image's channels as planes surrounded by zeros, and the tables of some rows of one plane:
/// [row][width][kEntries]. The table of a place holds the values that the candidates of a window read: at the
/// place, below it and to its right.
struct Tables {
  Tables(const ImageConvShape& shape, int pooled_rows) {
    const int k = shape.pool_kernel, stride = shape.pool_stride;
    const model::Padding down = model::same_padding(shape.in.height, k, stride);
    const model::Padding across = model::same_padding(shape.in.width, k, stride);
    const int before = model::centred_padding(shape.in.height, shape.kernel, 1).before;
    rows = (pooled_rows - 1) * stride + shape.kernel;
    width = (across.outputs - 1) * stride + shape.kernel;
    top = down.before + before;
    left = across.before + before;
    plane_width = width + kMostPoolKernel - 1;
    plane_height = (down.outputs - 1) * stride + shape.kernel + k - 1;
  }
  std::ptrdiff_t row_step() const { return std::ptrdiff_t{width} * kEntries; }
  std::ptrdiff_t floats() const { return row_step() * rows; }
  std::ptrdiff_t plane_floats() const { return std::ptrdiff_t{plane_width} * plane_height; }

  int rows = 0, width = 0;
  int top = 0, left = 0;  ///< zeros before the image
  int plane_height = 0, plane_width = 0;
};

template <class T>
[[gnu::always_inline]] inline void fill_planes(const ImageConvShape& shape, const Tables& lies,
                                               const T* image, float* planes) {
  const int rows = std::min(shape.in.height, lies.plane_height - lies.top);
  const int columns = std::min(shape.in.width, lies.plane_width - lies.left);
  std::fill_n(planes, lies.plane_floats() * shape.in.channels, 0.0f);
  for (int c = 0; c < shape.in.channels; ++c, image += shape.in.height * shape.in.width) {
    for (int y = 0; y < rows; ++y) {
      float* const to = planes + c * lies.plane_floats() + (lies.top + y) * lies.plane_width + lies.left;
      for (int x = 0; x < columns; ++x) to[x] = to_float(image[y * shape.in.width + x]);
    }
  }
}

template <int kPoolKernel>
[[gnu::always_inline]] inline void fill_tables(const Tables& lies, int rows, const float* plane,
                                               float* tables) {
  using Row = Vec<kMostPoolKernel>;
  for (int y = 0; y < rows; ++y, plane += lies.plane_width) {
    for (int x = 0; x < lies.width; ++x, tables += kEntries) {
      // With fewer than 4 candidates, the next row overwrites the rest.
      unrolled<kPoolKernel>([&](auto dy) __attribute__((always_inline)) {
        store(tables + dy * kPoolKernel, load<Row>(plane + dy * lies.plane_width + x));
      });
    }
  }
}

[[gnu::always_inline]] inline void fill_tables(const ImageConvShape& shape, const Tables& lies, int rows,
                                               const float* plane, float* tables) {
  if (shape.pool_kernel == 1) fill_tables<1>(lies, rows, plane, tables);
  if (shape.pool_kernel == 2) fill_tables<2>(lies, rows, plane, tables);
  if (shape.pool_kernel == 3) fill_tables<3>(lies, rows, plane, tables);
  if (shape.pool_kernel == 4) fill_tables<4>(lies, rows, plane, tables);
}

/// Some rows of pooled places: the choices of each, and its gradients, first for the lanes that chose a
/// candidate within a vector, then once for each further candidate.
struct Block {
  int rows = 0;
  int beyond = 0;
  std::int32_t* choices = nullptr;  ///< [rows · pooled width][out_channels]
  float* grads = nullptr;           ///< [rows · pooled width][1 + beyond][out_channels]
};

template <class T, class V>
[[gnu::always_inline]] inline void fill_block(const ImageConvShape& shape, const Block& block, int places,
                                              const T* grad_dst, const std::uint8_t* choices,
                                              float* sum_biases) {
  const int outputs = shape.out_channels;
  const std::ptrdiff_t step = std::ptrdiff_t{1 + block.beyond} * outputs;
  for (int i = 0; i < places * outputs; ++i) block.choices[i] = choices[i];
  for (int i = 0; i < places * outputs; i += 64) fetch(choices + places * outputs + i);  // the next block's
  for (int c = 0; c < outputs; c += kLanesIn<V>) {
    V sum{};
    for (int p = 0; p < places; ++p) {
      const V grad = load<V>(grad_dst + p * outputs + c);
      fetch(grad_dst + (places + p) * outputs + c);
      float* const grads = block.grads + p * step + c;
      sum += grad;
      store(grads, grad);
      if constexpr (kLanesIn<V> < kEntries) {
        if (block.beyond == 0) continue;
        BitsOf<V> choice;
        std::memcpy(&choice, block.choices + p * outputs + c, sizeof choice);
        store(grads, choice < broadcast_bits<V>(kLanesIn<V>) ? grad : V{});
        for (int b = 0; b < block.beyond; ++b) {
          const BitsOf<V> candidate = broadcast_bits<V>(static_cast<std::uint32_t>(kLanesIn<V> + b));
          store(grads + (1 + b) * outputs, choice == candidate ? grad : V{});
        }
      }
    }
    if (sum_biases != nullptr) store(sum_biases + c, load<V>(sum_biases + c) + sum);
  }
}

/// Adds to `sums` of kTaps taps in a row of the kernel, `tap_step` apart, and kVectors vectors of channels.
template <class V, int kTaps, int kVectors>
[[gnu::always_inline]] inline void gradient_tile(const ImageConvShape& shape, const Tables& lies,
                                                 const Block& block, int across, const float* tables, int c,
                                                 float* sums, std::ptrdiff_t tap_step) {
  constexpr int kLanes = kLanesIn<V>;
  const std::ptrdiff_t outputs = shape.out_channels;
  const std::int32_t* choices = block.choices + c;
  const float* grads = block.grads + c;
  V sum[kTaps][kVectors] = {};
  for (int wy = 0; wy < block.rows; ++wy) {
    const float* table = tables + wy * shape.pool_stride * lies.row_step();
    for (int wx = 0; wx < across; ++wx, table += shape.pool_stride * kEntries) {
      IndicesOf<V> choice[kVectors];
      V grad[kVectors];
      unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
        std::memcpy(&choice[j], choices + j * kLanes, sizeof choice[j]);
        grad[j] = load<V>(grads + j * kLanes);
      });
      unrolled<kTaps>([&](auto t) __attribute__((always_inline)) {
        const V values = load<V>(table + t * kEntries);
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
          sum[t][j] += permuted(values, choice[j]) * grad[j];
        });
        if constexpr (kLanes < kEntries) {
          for (int b = 0; b < block.beyond; ++b) {
            const V value = broadcast<V>(table[t * kEntries + kLanes + b]);
            unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
              sum[t][j] += value * load<V>(grads + (1 + b) * outputs + j * kLanes);
            });
          }
        }
      });
      choices += outputs;
      grads += (1 + block.beyond) * outputs;
    }
  }
  unrolled<kTaps>([&](auto t) __attribute__((always_inline)) {
    unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
      float* const to = sums + t * tap_step + j * kLanes;
      store(to, load<V>(to) + sum[t][j]);
    });
  });
}

/// All taps of one row of the kernel and one channel of the image.
template <class V, int kVectors>
[[gnu::always_inline]] inline void gradient_strip(const ImageConvShape& shape, const Tables& lies,
                                                  const Block& block, int across, const float* tables, int c,
                                                  float* sums) {
  const std::ptrdiff_t tap_step = std::ptrdiff_t{shape.in.channels} * shape.out_channels;
  const int tiles = (shape.kernel + kMostTaps - 1) / kMostTaps;
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = shape.kernel * tile / tiles, taps = shape.kernel * (tile + 1) / tiles - first;
    const float* const from = tables + first * kEntries;
    float* const to = sums + first * tap_step;
    const auto run = [&](auto count) __attribute__((always_inline)) {
      gradient_tile<V, count, kVectors>(shape, lies, block, across, from, c, to, tap_step);
    };
    if (taps == 1) run(std::integral_constant<int, 1>{});
    if (taps == 2) run(std::integral_constant<int, 2>{});
    if (taps == 3) run(std::integral_constant<int, 3>{});
    if (taps == 4) run(std::integral_constant<int, 4>{});
    if (taps == 5) run(std::integral_constant<int, 5>{});
  }
}

/// All taps of one channel of the image.
template <class V>
[[gnu::always_inline]] inline void add_block(const ImageConvShape& shape, const Tables& lies,
                                             const Block& block, int across, const float* tables,
                                             float* sums) {
  constexpr int kVectors = kLanesIn<V> == 16 ? 4 : 2;
  const std::ptrdiff_t sums_step = std::ptrdiff_t{shape.kernel} * shape.in.channels * shape.out_channels;
  for (int r = 0; r < shape.kernel; ++r, tables += lies.row_step(), sums += sums_step) {
    int c = 0;
    for (; c + kVectors * kLanesIn<V> <= shape.out_channels; c += kVectors * kLanesIn<V>)
      gradient_strip<V, kVectors>(shape, lies, block, across, tables, c, sums + c);
    for (; c < shape.out_channels; c += kLanesIn<V>)
      gradient_strip<V, 1>(shape, lies, block, across, tables, c, sums + c);
  }
}

/// Tables, a block's gradients and choices, and planes, which alone may be unaligned.
struct GradientScratch {
  GradientScratch(const ImageConvShape& shape, int lanes)
      : pooled(shape.pooled()),
        rows(std::clamp(kBlockPlaces / pooled.width, 1, pooled.height)),
        beyond(std::max(0, shape.pool_kernel * shape.pool_kernel - lanes)),
        row_values(std::ptrdiff_t{pooled.width} * pooled.channels),
        tables(shape, rows),
        planes_floats(tables.plane_floats() * shape.in.channels) {}
  std::ptrdiff_t grads_floats() const { return rows * row_values * (1 + beyond); }
  std::size_t floats() const {
    return whole_lines(tables.floats() + grads_floats() + rows * row_values + planes_floats);
  }

  Extent pooled;
  int rows;    ///< of a block
  int beyond;  ///< see Block
  std::ptrdiff_t row_values;
  Tables tables;
  std::ptrdiff_t planes_floats;
};

template <class T>
struct Gradient {
  template <int kLanes>
  struct Version {
    [[gnu::always_inline]] static void run(const ImageConvShape& shape, const std::byte* image,
                                           const std::byte* grad_dst, const std::uint8_t* choices,
                                           float* scratch, float* sum_weights, float* sum_biases) {
      using V = Vec<kLanes>;
      const GradientScratch lies(shape, kLanes);
      const Tables& tables = lies.tables;
      Block block;
      block.beyond = lies.beyond;
      block.grads = scratch + tables.floats();
      block.choices = reinterpret_cast<std::int32_t*>(block.grads + lies.grads_floats());
      float* const planes = block.grads + lies.grads_floats() + lies.rows * lies.row_values;
      fill_planes(shape, tables, reinterpret_cast<const T*>(image), planes);
      for (int wy = 0; wy < lies.pooled.height; wy += lies.rows) {
        block.rows = std::min(lies.rows, lies.pooled.height - wy);
        fill_block<T, V>(shape, block, block.rows * lies.pooled.width,
                         reinterpret_cast<const T*>(grad_dst) + wy * lies.row_values,
                         choices + wy * lies.row_values, sum_biases);
        const float* plane = planes + wy * shape.pool_stride * tables.plane_width;
        for (int c = 0; c < shape.in.channels; ++c, plane += tables.plane_floats()) {
          fill_tables(shape, tables, (block.rows - 1) * shape.pool_stride + shape.kernel, plane, scratch);
          add_block<V>(shape, tables, block, lies.pooled.width, scratch,
                       sum_weights + c * shape.out_channels);
        }
      }
    }
  };
};

template <int kLanes>
std::size_t scratch_floats(const ImageConvShape& shape) {
  return GradientScratch(shape, kLanes).floats();
}

template <class T>
ImageGradient gradient_of(VectorSet set) {
  return {set == VectorSet::avx512 ? &scratch_floats<16>
          : set == VectorSet::avx2 ? &scratch_floats<8>
                                   : &scratch_floats<4>,
          version_for<Gradient<T>::template Version>(set)};
}

}  // namespace

ImageGradient image_gradient(VectorSet set, engine::Precision precision) {
  return precision == engine::Precision::bf16 ? gradient_of<bf16>(set) : gradient_of<float>(set);
}

}  // namespace cifar_mpi::cpu
