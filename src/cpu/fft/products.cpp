#include "cpu/fft/products.hpp"

#include "cpu/vectors.hpp"

namespace cifar_mpi::cpu::fft {
namespace {

/// A cache line of each row of an operand; the first is `at`.
struct LineOfRows {
  const float* at = nullptr;
  std::ptrdiff_t depth = 0;
  std::ptrdiff_t piece = 0;
};

/// Lines of the next product's operands that the tiles of C prefetch during computation: those of B, then
/// those of A. When none are left, tiles prefetch their own operands.
class NextLines {
 public:
  [[gnu::always_inline]] NextLines(const ProductShape& shape, const float* a, const float* b)
      : shape_(shape), a_(a), b_(b) {}

  [[gnu::always_inline]] LineOfRows take() {
    const int of_b = lines(shape_.b), of_a = lines(shape_.a), number = taken_++;
    if (number < of_b) return line(shape_.b, b_, number);
    if (number < of_b + of_a) return line(shape_.a, a_, number - of_b);
    return {b_, 0, 0};
  }

 private:
  static constexpr int kFloats = 16;  // of a cache line

  static int lines(const ProductSide& side) {
    return side.next == 0 ? 0 : static_cast<int>(2 * side.im / kFloats);
  }
  static LineOfRows line(const ProductSide& side, const float* operand, int number) {
    return {operand + side.next + number * kFloats, side.depth, side.piece};
  }

  const ProductShape& shape_;
  const float* a_;
  const float* b_;
  int taken_ = 0;
};

/// kRows x (kVectors vectors of columns) of C, which stay in registers during the loop over k: 3·4·2
/// accumulators, 3·2 values of B and 2 of A fill the 32 registers of AVX-512; 3·3·1, 3 and 2 nearly fill the
/// 16 of AVX2. (With one accumulator in memory each k waits for it: with 4 rows AVX2 took 1.5 times as long.)
/// A single vector of AVX-512 has 8 rows, which with 16 channels took 0.83 of the time of 4.
template <class V, int kRows, int kVectors, ProductKind kKind>
[[gnu::always_inline]] inline void tile(const ProductShape& shape, const LineOfRows& next, const float* a,
                                        const float* b, float* c) {
  constexpr bool kConjugate = kKind != ProductKind::convolve, kSums = kKind == ProductKind::sum;
  V first[kRows][kVectors] = {}, second[kRows][kVectors] = {}, third[kRows][kVectors] = {};
  if constexpr (kSums) {
    unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
      unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
        const float* const from = c + m * shape.c.row + j * kLanesIn<V>;
        first[m][j] = load<V>(from);
        second[m][j] = load<V>(from + shape.c.im);
        third[m][j] = load<V>(from + 2 * shape.c.im);
      });
    });
  }
  for (int piece = 0; piece < shape.pieces; ++piece) {
    const float* from_a = a + piece * shape.a.piece;
    const float* from_b = b + piece * shape.b.piece;
    const float* fetched = next.at + piece * next.piece;
    for (int k = 0; k < shape.depth; ++k) {
      fetch(fetched);
      V u[kVectors], sum[kVectors], difference[kVectors];
      unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
        u[j] = load<V>(from_b + j * kLanesIn<V>);
        const V v = load<V>(from_b + shape.b.im + j * kLanesIn<V>);
        sum[j] = kConjugate ? u[j] - v : u[j] + v;
        difference[j] = kConjugate ? u[j] + v : u[j] - v;
      });
      unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
        const V x = broadcast<V>(from_a[m * shape.a.row]);
        const V y = broadcast<V>(from_a[m * shape.a.row + shape.a.im]);
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
          second[m][j] += x * difference[j];
          third[m][j] += y * sum[j];
        });
        const V both = x + y;  // last, because it reuses the register of x: none is free
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) { first[m][j] += both * u[j]; });
      });
      from_a += shape.a.depth;
      from_b += shape.b.depth;
      fetched += next.depth;
    }
  }
  unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
    unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
      float* const to = c + m * shape.c.row + j * kLanesIn<V>;
      store(to, kSums ? first[m][j] : first[m][j] - third[m][j]);
      store(to + shape.c.im, kSums ? second[m][j] : first[m][j] - second[m][j]);
      if constexpr (kSums) store(to + 2 * shape.c.im, third[m][j]);
    });
  });
}

template <class V, int kVectors, ProductKind kKind>
[[gnu::always_inline]] inline void strip(const ProductShape& shape, NextLines& next, const float* a,
                                         const float* b, float* c) {
  constexpr bool kIsHalf = kLanesIn<V> == 16 && kVectors == 1;
  constexpr int kRows = rows_of_tile(kLanesIn<V>) * (kIsHalf ? 2 : 1);
  int m = 0;
  for (; m + kRows <= shape.rows; m += kRows) {
    tile<V, kRows, kVectors, kKind>(shape, next.take(), a + m * shape.a.row, b, c + m * shape.c.row);
  }
  if constexpr (kIsHalf) {
    constexpr int kHalf = kRows / 2;
    for (; m + kHalf <= shape.rows; m += kHalf)
      tile<V, kHalf, kVectors, kKind>(shape, next.take(), a + m * shape.a.row, b, c + m * shape.c.row);
  }
  for (; m < shape.rows; ++m)
    tile<V, 1, kVectors, kKind>(shape, next.take(), a + m * shape.a.row, b, c + m * shape.c.row);
}

template <ProductKind kKind>
struct Multiply {
  template <int kLanes>
  struct Version {
    [[gnu::always_inline]] static void run(const ProductShape& shape, const float* a, const float* b,
                                           float* c) {
      using V = Vec<kLanes>;
      NextLines next(shape, a, b);
      int j = 0;
      if constexpr (kLanes == 16) {
        for (; j + 2 * kLanes <= shape.columns; j += 2 * kLanes)
          strip<V, 2, kKind>(shape, next, a, b + j, c + j);
      }
      for (; j < shape.columns; j += kLanes) strip<V, 1, kKind>(shape, next, a, b + j, c + j);
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

void combine_sums(const ProductSide& c, int rows, float* sums) {
  for (int row = 0; row < rows; ++row, sums += c.row) {
    for (std::ptrdiff_t i = 0; i < c.im; ++i) {
      const float first = sums[i], second = sums[c.im + i], third = sums[2 * c.im + i];
      sums[i] = first - third;
      sums[c.im + i] = first - second;
    }
  }
}

}  // namespace cifar_mpi::cpu::fft
