#include "cpu/fft/products.hpp"

#include "cpu/vectors.hpp"

namespace cifar_mpi::cpu::fft {
namespace {

/// Cache lines that a tile prefetches: at each k the one of an address, which moves on by `depth`.
struct Lines {
  const float* at = nullptr;
  std::ptrdiff_t depth = 0;
  std::ptrdiff_t piece = 0;
};

/// Lines of later operands that the tiles of C prefetch during computation: those of B's next strip, then
/// those of the next product's A. Where there are more tiles than lines need, each line is fetched `spread_` times, at
/// successive k, so that fewer misses wait at once: more than a core has buffers for delay operands from the L2 cache. With
/// 256 channels and 128 rows this takes 0.96 of the time (Zen 5).
class NextLines {
 public:
  [[gnu::always_inline]] NextLines(const ProductShape& shape, const float* a, int lanes)
      : shape_(shape),
        a_(a),
        of_a_(shape.a.next == 0 ? 0 : takes((shape.rows + lanes - 1) / lanes * shape.a.panel)),
        of_vector_(takes(shape.depth * shape.b.depth)) {
    const int panels = (shape.columns + lanes - 1) / lanes;
    const std::ptrdiff_t needed = of_a_ + panels * of_vector_;
    const std::ptrdiff_t tiles = std::ptrdiff_t{panels} * (shape.rows / rows_of_tile(lanes));
    constexpr int kMostSpread = 8;
    while (spread_ < kMostSpread && 2 * spread_ * needed <= tiles) spread_ *= 2;
    of_a_ *= spread_;
    of_vector_ *= spread_;
  }

  /// The next strip begins at `b` and has so many vectors; null: none.
  [[gnu::always_inline]] void begin_strip(const float* b, int vectors) {
    b_ = b;
    of_b_ = b == nullptr ? 0 : vectors * of_vector_;
    taken_of_b_ = 0;
  }
  [[gnu::always_inline]] Lines take() {
    const std::ptrdiff_t floats = kFloats / spread_, step = floats * shape_.depth;
    if (taken_of_b_ < of_b_) {
      const std::ptrdiff_t number = taken_of_b_++;
      return {b_ + number / of_vector_ * shape_.b.panel + number % of_vector_ * step, floats, shape_.b.piece};
    }
    if (taken_of_a_ < of_a_) return {a_ + shape_.a.next + taken_of_a_++ * step, floats, shape_.a.piece};
    return {a_, 0, 0};
  }

 private:
  static constexpr int kFloats = 16;  // of a line

  /// Tiles that prefetch so many floats of a piece.
  std::ptrdiff_t takes(std::ptrdiff_t floats) const {
    const std::ptrdiff_t of_tile = std::ptrdiff_t{kFloats} * shape_.depth;
    return (floats + of_tile - 1) / of_tile;
  }

  const ProductShape& shape_;
  const float* a_;
  const float* b_ = nullptr;
  std::ptrdiff_t spread_ = 1;
  std::ptrdiff_t of_a_, of_vector_, of_b_ = 0;
  std::ptrdiff_t taken_of_a_ = 0, taken_of_b_ = 0;
};

/// kRows from row m x (kVectors vectors of columns) of C, which stay in registers during the loop over k:
/// 4·2·3 accumulators, 3·2 values of B and 2 of A fill the 32 registers of AVX-512; 3·1·3, 3 and 2 nearly
/// fill the 16 of AVX2. (With one accumulator in memory each k waits for it: with 4 rows AVX2 took 1.5 times
/// as long.) A single vector of AVX-512 has 8 rows, which with 16 channels took 0.83 of the time of 4; where
/// there are two, it took 1.2 times as long as both together.
template <class V, int kRows, int kVectors, ProductKind kKind>
[[gnu::always_inline]] inline void tile(const ProductShape& shape, const Lines& next, int m, const float* a,
                                        const float* b, float* c) {
  constexpr bool kConjugate = kKind != ProductKind::convolve, kSums = kKind == ProductKind::sum;
  constexpr int kLanes = kLanesIn<V>;
  constexpr bool kInPanel = kLanes % kRows == 0;
  const std::ptrdiff_t begin = shape.a.to_row(m, kLanes);
  std::ptrdiff_t rows[kRows];
  for (int i = 0; i < kRows; ++i)
    rows[i] = kInPanel ? i * shape.a.row : shape.a.to_row(m + i, kLanes) - begin;
  const std::ptrdiff_t a_depth = shape.a.depth, b_depth = shape.b.depth, b_panel = shape.b.panel;
  a += begin;
  c += m * shape.c.row;
  V first[kRows][kVectors] = {}, second[kRows][kVectors] = {}, third[kRows][kVectors] = {};
  if constexpr (kSums) {
    unrolled<kRows>([&](auto i) __attribute__((always_inline)) {
      unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
        const float* const from = c + i * shape.c.row + j * shape.c.panel;
        first[i][j] = load<V>(from);
        second[i][j] = load<V>(from + kLanes);
        third[i][j] = load<V>(from + 2 * kLanes);
      });
    });
  }
  for (int piece = 0; piece < shape.pieces; ++piece) {
    const float* from_x = a + piece * shape.a.piece;
    const float* from_y = from_x + shape.im;
    const float* from_b = b + piece * shape.b.piece;
    const float* fetched = next.at + piece * next.piece;
    const int depth = shape.depth_of(piece);
    for (int k = 0; k < depth; ++k) {
      fetch(fetched);
      V u[kVectors], sum[kVectors], difference[kVectors];
      unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
        u[j] = load<V>(from_b + j * b_panel);
        const V v = load<V>(from_b + j * b_panel + kLanes);
        sum[j] = kConjugate ? u[j] - v : u[j] + v;
        difference[j] = kConjugate ? u[j] + v : u[j] - v;
      });
      unrolled<kRows>([&](auto i) __attribute__((always_inline)) {
        const V x = broadcast<V>(from_x[rows[i]]), y = broadcast<V>(from_y[rows[i]]);
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
          second[i][j] += x * difference[j];
          third[i][j] += y * sum[j];
        });
        const V both = x + y;  // last, because it reuses the register of x: none is free
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) { first[i][j] += both * u[j]; });
      });
      from_x += a_depth;
      from_y += a_depth;
      from_b += b_depth;
      fetched += next.depth;
    }
  }
  unrolled<kRows>([&](auto i) __attribute__((always_inline)) {
    unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
      float* const to = c + i * shape.c.row + j * shape.c.panel;
      store(to, kSums ? first[i][j] : first[i][j] - third[i][j]);
      store(to + kLanes, kSums ? second[i][j] : first[i][j] - second[i][j]);
      if constexpr (kSums) store(to + 2 * kLanes, third[i][j]);
    });
  });
}

template <class V, int kVectors, ProductKind kKind>
[[gnu::always_inline]] inline void strip(const ProductShape& shape, NextLines& next, const float* a,
                                         const float* b, float* c) {
  constexpr int kMost = rows_of_tile(kLanesIn<V>), kHalf = kMost / 2, kRows = kVectors == 1 ? kMost : kHalf;
  const int end = shape.first + shape.rows;
  int m = shape.first;
  for (; m + kRows <= end; m += kRows) tile<V, kRows, kVectors, kKind>(shape, next.take(), m, a, b, c);
  if constexpr (kRows == 2 * kHalf)
    for (; m + kHalf <= end; m += kHalf) tile<V, kHalf, kVectors, kKind>(shape, next.take(), m, a, b, c);
  for (; m < end; ++m) tile<V, 1, kVectors, kKind>(shape, next.take(), m, a, b, c);
}

template <ProductKind kKind>
struct Multiply {
  template <int kLanes>
  struct Version {
    [[gnu::always_inline]] static void run(const ProductShape& shape, const float* a, const float* b,
                                           float* c) {
      constexpr int kMost = kLanes == 16 ? 2 : 1;
      NextLines next(shape, a, kLanes);
      const float* const after = shape.b.next == 0 ? nullptr : b + shape.b.next;
      int panels = (shape.columns + kLanes - 1) / kLanes;
      const auto strips_of = [&](auto vectors) __attribute__((always_inline)) {
        while (panels >= vectors) {
          panels -= vectors;
          const float* const beyond = b + vectors * shape.b.panel;
          next.begin_strip(panels > 0 ? beyond : after, vectors);
          strip<Vec<kLanes>, vectors, kKind>(shape, next, a, b, c);
          b = beyond;
          c += vectors * shape.c.panel;
        }
      };
      strips_of(std::integral_constant<int, kMost>{});
      if constexpr (kMost > 1) strips_of(std::integral_constant<int, 1>{});
    }
  };
};

}  // namespace

Product product_for(VectorSet set, ProductKind kind) {
  if (kind == ProductKind::real || kind == ProductKind::real_sum)
    return real_product_for(set, kind == ProductKind::real_sum);
  if (kind == ProductKind::sum) return version_for<Multiply<ProductKind::sum>::Version>(set);
  return kind == ProductKind::correlate ? version_for<Multiply<ProductKind::correlate>::Version>(set)
                                        : version_for<Multiply<ProductKind::convolve>::Version>(set);
}

void combine_sums(int rows, int lanes, float* sums) {
  for (int row = 0; row < rows; ++row, sums += 3 * lanes) {
    for (int i = 0; i < lanes; ++i) {
      const float first = sums[i], second = sums[lanes + i], third = sums[2 * lanes + i];
      sums[i] = first - third;
      sums[lanes + i] = first - second;
    }
  }
}

}  // namespace cifar_mpi::cpu::fft
