#include <algorithm>
#include <cstring>

#include "cifar_mpi/model/layer.hpp"
#include "cpu/image_conv/image_kernels.hpp"
#include "cpu/vectors.hpp"

// The vectorized forward pass, see image_kernels.hpp.
//
// Limit: the multiplications. 6 places by 4 vectors of channels fill 24 of the 32 registers of AVX-512 and
// need 4 loads and 6 broadcasts per 24 multiplications; AVX2 has 6 by 2. Rows outside the image are skipped,
// columns are zeros.
namespace cifar_mpi::cpu {
namespace {

/// The input of an output row: the image as [row][column][channel] with padding left and right.
struct PaddedImage {
  explicit PaddedImage(const ImageConvShape& shape)
      : before(model::centred_padding(shape.in.height, shape.kernel, 1).before),
        row_floats(std::ptrdiff_t{shape.in.width + shape.kernel - 1} * shape.in.channels) {}
  int before;
  std::ptrdiff_t row_floats;
};

template <class T>
[[gnu::always_inline]] inline void pad_image(const ImageConvShape& shape, const T* image, float* padded) {
  const PaddedImage lies(shape);
  const int width = shape.in.width, channels = shape.in.channels;
  std::fill_n(padded, lies.row_floats * shape.in.height, 0.0f);
  for (int c = 0; c < channels; ++c) {
    for (int y = 0; y < shape.in.height; ++y, image += width) {
      float* const row = padded + y * lies.row_floats + lies.before * channels + c;
      for (int x = 0; x < width; ++x) row[x * channels] = to_float(image[x]);
    }
  }
}

/// Common data of the tiles of one row.
struct ConvRow {
  const float* image = nullptr;    ///< the first row of taps that lies inside
  const float* weights = nullptr;  ///< of that row of taps
  const float* biases = nullptr;
  float* dst = nullptr;  ///< [width][out_channels]
  std::ptrdiff_t image_step = 0;
  int tap_rows = 0;
  int row_taps = 0;
};

template <class T, class V, int kPlaces, int kVectors>
[[gnu::always_inline]] inline void conv_tile(const ImageConvShape& shape, const ConvRow& row, int x, int c) {
  const std::ptrdiff_t outputs = shape.out_channels, channels = shape.in.channels;
  V sum[kPlaces][kVectors];
  unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
    const V bias = row.biases != nullptr ? load<V>(row.biases + c + j * kLanesIn<V>) : V{};
    unrolled<kPlaces>([&](auto i) __attribute__((always_inline)) { sum[i][j] = bias; });
  });
  const float* image = row.image + x * channels;
  const float* weights = row.weights + c;
  for (int r = 0; r < row.tap_rows; ++r, image += row.image_step) {
    for (int t = 0; t < row.row_taps; ++t, weights += outputs) {
      V w[kVectors];
      unrolled<kVectors>([&](auto j)
                             __attribute__((always_inline)) { w[j] = load<V>(weights + j * kLanesIn<V>); });
      unrolled<kPlaces>([&](auto i) __attribute__((always_inline)) {
        const V value = broadcast<V>(image[t + i * channels]);
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) { sum[i][j] += value * w[j]; });
      });
    }
  }
  unrolled<kPlaces>([&](auto i) __attribute__((always_inline)) {
    unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
      store(row.dst + (x + i) * outputs + c + j * kLanesIn<V>, as_stored<T>(sum[i][j]));
    });
  });
}

/// The last tile of a row ends with the row and recomputes some places.
template <class T, class V, int kVectors>
[[gnu::always_inline]] inline void conv_strip(const ImageConvShape& shape, const ConvRow& row, int c) {
  constexpr int kPlaces = 6;
  const int width = shape.in.width;
  if (width < kPlaces) {
    for (int x = 0; x < width; ++x) conv_tile<T, V, 1, kVectors>(shape, row, x, c);
    return;
  }
  for (int x = 0; x < width; x += kPlaces)
    conv_tile<T, V, kPlaces, kVectors>(shape, row, std::min(x, width - kPlaces), c);
}

template <class T, class V>
[[gnu::always_inline]] inline void conv_row(const ImageConvShape& shape, const float* padded,
                                            const float* weights, const float* biases, int y, float* dst) {
  constexpr int kVectors = kLanesIn<V> == 16 ? 4 : 2;
  const PaddedImage lies(shape);
  const int first = std::max(0, lies.before - y);
  const int last = std::min(shape.kernel, shape.in.height + lies.before - y);
  ConvRow row;
  row.row_taps = shape.kernel * shape.in.channels;
  row.tap_rows = last - first;
  row.image_step = lies.row_floats;
  row.image = padded + (y + first - lies.before) * lies.row_floats;
  row.weights = weights + std::ptrdiff_t{first} * row.row_taps * shape.out_channels;
  row.biases = biases;
  row.dst = dst;
  int c = 0;
  for (; c + kVectors * kLanesIn<V> <= shape.out_channels; c += kVectors * kLanesIn<V>)
    conv_strip<T, V, kVectors>(shape, row, c);
  for (; c < shape.out_channels; c += kLanesIn<V>) conv_strip<T, V, 1>(shape, row, c);
}

/// Rows of the convolution's output; only the last few are kept.
struct ConvRows {
  float* first = nullptr;
  int kept = 0;
  std::ptrdiff_t step = 0;
  float* row(int y) const { return first + y % kept * step; }
};

/// Destination of the pooled row whose windows begin with row `top`, and the rows of the convolution that it
/// reads.
template <class T>
struct PooledRow {
  int top = 0;
  const float* rows[kMostPoolKernel] = {};  ///< null: outside the image
  T* dst = nullptr;
  std::uint32_t* choices = nullptr;
};

/// The largest candidate of the window that begins in column `left`, the first of equals; NaN never wins.
/// Places outside the image do not count; kInside: there are none.
template <class V, int kPoolKernel, bool kInside>
[[gnu::always_inline]] inline void pool_window(const ImageConvShape& shape, const float* const* rows,
                                               int left, int c, V& best, BitsOf<V>& choice) {
  const std::ptrdiff_t outputs = shape.out_channels;
  bool first = true;
  unrolled<kPoolKernel>([&](auto dy) __attribute__((always_inline)) {
    if (!kInside && rows[dy] == nullptr) return;
    const float* const at = rows[dy] + left * outputs + c;
    unrolled<kPoolKernel>([&](auto dx) __attribute__((always_inline)) {
      if (!kInside && (left + dx < 0 || left + dx >= shape.in.width)) return;
      const V value = load<V>(at + dx * outputs);
      const BitsOf<V> number = BitsOf<V>{} + static_cast<std::uint32_t>(dy * kPoolKernel + dx);
      const auto larger = value > best;
      choice = first ? number : larger ? number : choice;
      best = first ? value : larger ? value : best;
      first = false;
    });
  });
}

template <class T, class V, int kPoolKernel>
[[gnu::always_inline]] inline void pool_row(const ImageConvShape& shape, const PooledRow<T>& row) {
  const int outputs = shape.out_channels;
  const model::Padding across = model::same_padding(shape.in.width, kPoolKernel, shape.pool_stride);
  const V floor = V{} - (shape.relu ? 0.0f : __builtin_inff());
  const bool rows_inside = row.top >= 0 && row.top + kPoolKernel <= shape.in.height;
  for (int wx = 0; wx < across.outputs; ++wx) {
    const int left = wx * shape.pool_stride - across.before;
    const bool inside = rows_inside && left >= 0 && left + kPoolKernel <= shape.in.width;
    for (int c = 0; c < outputs; c += kLanesIn<V>) {
      V best{};
      BitsOf<V> choice{};
      if (inside)
        pool_window<V, kPoolKernel, true>(shape, row.rows, left, c, best, choice);
      else
        pool_window<V, kPoolKernel, false>(shape, row.rows, left, c, best, choice);
      store(row.dst + wx * outputs + c, best < floor ? floor : best);  // NaN stays NaN
      std::memcpy(row.choices + wx * outputs + c, &choice, sizeof choice);
    }
  }
}

template <class T, class V>
[[gnu::always_inline]] inline void pool_row(const ImageConvShape& shape, const PooledRow<T>& row) {
  if (shape.pool_kernel == 1) pool_row<T, V, 1>(shape, row);
  if (shape.pool_kernel == 2) pool_row<T, V, 2>(shape, row);
  if (shape.pool_kernel == 3) pool_row<T, V, 3>(shape, row);
  if (shape.pool_kernel == 4) pool_row<T, V, 4>(shape, row);
}

/// Rows of the convolution, the choices of a pooled row, and the padded image, which alone may be unaligned.
struct ForwardScratch {
  explicit ForwardScratch(const ImageConvShape& shape)
      : row_floats(std::ptrdiff_t{shape.in.width} * shape.out_channels),
        kept(shape.pool_kernel),
        before(model::same_padding(shape.in.height, shape.pool_kernel, shape.pool_stride).before),
        padded_floats(PaddedImage(shape).row_floats * shape.in.height),
        choices(std::ptrdiff_t{shape.pooled().width} * shape.out_channels) {}
  std::ptrdiff_t rows_floats() const { return kept * row_floats; }
  std::size_t floats() const { return whole_lines(rows_floats() + choices + padded_floats); }

  std::ptrdiff_t row_floats;
  int kept;
  int before;
  std::ptrdiff_t padded_floats;
  std::ptrdiff_t choices;
};

template <class T>
struct Forward {
  template <int kLanes>
  struct Version {
    [[gnu::always_inline]] static void run(const ImageConvShape& shape, const std::byte* image,
                                           const float* weights, const float* biases, float* scratch,
                                           std::byte* dst, std::uint8_t* choices) {
      using V = Vec<kLanes>;
      const Extent pooled = shape.pooled();
      const std::ptrdiff_t pooled_row = std::ptrdiff_t{pooled.width} * pooled.channels;
      const ForwardScratch lies(shape);
      const ConvRows rows{scratch, shape.pool_kernel, lies.row_floats};
      float* const padded = scratch + lies.rows_floats() + lies.choices;
      PooledRow<T> row{
          0, {}, reinterpret_cast<T*>(dst), reinterpret_cast<std::uint32_t*>(scratch + lies.rows_floats())};
      pad_image(shape, reinterpret_cast<const T*>(image), padded);
      for (int wy = 0, y = 0; wy < pooled.height; ++wy, row.dst += pooled_row) {
        row.top = wy * shape.pool_stride - lies.before;
        for (y = std::max(y, row.top); y < std::min(row.top + shape.pool_kernel, shape.in.height); ++y)
          conv_row<T, V>(shape, padded, weights, biases, y, rows.row(y));
        for (int dy = 0; dy < shape.pool_kernel; ++dy) {
          const bool inside = row.top + dy >= 0 && row.top + dy < shape.in.height;
          row.rows[dy] = inside ? rows.row(row.top + dy) : nullptr;
        }
        pool_row<T, V>(shape, row);
        if (choices == nullptr) continue;
        for (std::ptrdiff_t i = 0; i < pooled_row; ++i)
          choices[i] = static_cast<std::uint8_t>(row.choices[i]);
        choices += pooled_row;
      }
    }
  };
};

template <class T>
ImageForward forward_of(VectorSet set) {
  return {[](const ImageConvShape& shape) { return ForwardScratch(shape).floats(); },
          version_for<Forward<T>::template Version>(set)};
}

}  // namespace

ImageForward image_forward(VectorSet set, engine::Precision precision) {
  return precision == engine::Precision::bf16 ? forward_of<bf16>(set) : forward_of<float>(set);
}

}  // namespace cifar_mpi::cpu
