#pragma once

#include "cpu/fft/image_fft.hpp"
#include "cpu/vectors.hpp"

/// Minimal filtering F(4x4, 3x3) (Winograd 1980; Lavin and Gray 2016), one tile per lane of a vector.
///
/// A tile of 4x4 outputs reads 6x6 inputs. Polynomials of degree 3 (outputs) and 2 (taps) are evaluated at five
/// points and at infinity, so that with
///
///   V(x) = Bᵀ·x·B   x [6, 6], a tile with what its outputs read beyond it
///   Z(x) = A·x·Aᵀ   x [4, 4], the tile alone
///   U(w) = G·w·Gᵀ   w [3, 3], taps
///
/// the passes are products of numbers per slot instead of products of complex numbers per frequency. With w' for
/// the taps rotated by half a turn, which padding of 1 leaves in place:
///
///   y = Aᵀ·(V(x) ∘ U(w))·A,    gx = Aᵀ·(V(gy) ∘ U(w'))·A,    gw' = Gᵀ·(V(gy) ∘ Z(x))·G
///
/// So each place of gx is rounded once, also in bf16. The points are 0, ±5/8, ±3/2 and infinity. All entries of A
/// and B are exact in fp32. Errors relative to the length of the result, of random operands with 48 channels, for the
/// forward pass and for the weight gradient, in 1e-7. For outputs of a ReLU, which have one sign, the terms of Z add up,
/// and the weight gradient errs 5.3 times as much as oneDNN's.
///
///   direct sums          2.5   5.1
///   0, ±5/8, ±3/2        5.3   7.6
///   0, ±3/4, ±3/2        5.7   7.9
///   0, ±1, 1/2, −2       7.6  11.0
///   0, ±1, ±2           11.6  17.3
namespace cifar_mpi::cpu::fft {

/// Along one side: `kSide` values and the values of their polynomial at six points.
struct WinogradPoints {
  static constexpr int kPoints = 6;
  static constexpr float a = 0.625f, b = 1.5f;
  static constexpr float a2 = a * a, b2 = b * b, sum = a2 + b2, product = a2 * b2;
};

/// A tile with what it reaches.
struct WinogradReach : WinogradPoints {
  static constexpr bool kInverts = false;
  static constexpr int kSide = 6;
  static constexpr int kBefore = 1;  ///< places before the tile

  /// Bᵀ·x
  template <class V>
  [[gnu::always_inline]] static void forward(const V* x, V* to) {
    const V even_a = x[4] - b2 * x[2], odd_a = x[3] - b2 * x[1];
    const V even_b = x[4] - a2 * x[2], odd_b = x[3] - a2 * x[1];
    to[0] = x[4] - sum * x[2] + product * x[0];
    to[1] = even_a + a * odd_a;
    to[2] = even_a - a * odd_a;
    to[3] = even_b + b * odd_b;
    to[4] = even_b - b * odd_b;
    to[5] = x[5] - sum * x[3] + product * x[1];
  }
};

/// A tile alone.
struct WinogradTile : WinogradPoints {
  static constexpr bool kInverts = true;
  static constexpr int kSide = 4;
  static constexpr int kBefore = 0;

  /// A·y
  template <class V>
  [[gnu::always_inline]] static void forward(const V* y, V* to) {
    const V even_a = y[0] + a2 * y[2], odd_a = y[1] + a2 * y[3];
    const V even_b = y[0] + b2 * y[2], odd_b = y[1] + b2 * y[3];
    to[0] = y[0];
    to[1] = even_a + a * odd_a;
    to[2] = even_a - a * odd_a;
    to[3] = even_b + b * odd_b;
    to[4] = even_b - b * odd_b;
    to[5] = y[3];
  }
  /// Aᵀ·m
  template <class V>
  [[gnu::always_inline]] static void inverse(const V* m, V* to) {
    const V even_a = m[1] + m[2], odd_a = a * (m[1] - m[2]);
    const V even_b = m[3] + m[4], odd_b = b * (m[3] - m[4]);
    to[0] = m[0] + even_a + even_b;
    to[1] = odd_a + odd_b;
    to[2] = a2 * even_a + b2 * even_b;
    to[3] = m[5] + a2 * odd_a + b2 * odd_b;
  }
};

/// Taps.
struct WinogradTaps : WinogradPoints {
  static constexpr bool kInverts = true;
  static constexpr int kSide = 3;
  static constexpr int kBefore = 0;
  static constexpr float at_0 = 1.0f / product;  ///< one over the product of the distances to other points
  static constexpr float at_a = 0.5f / (a2 * (a2 - b2)), at_b = 0.5f / (b2 * (b2 - a2));

  /// G·w
  template <class V>
  [[gnu::always_inline]] static void forward(const V* w, V* to) {
    const V even_a = at_a * (w[0] + a2 * w[2]), odd_a = (at_a * a) * w[1];
    const V even_b = at_b * (w[0] + b2 * w[2]), odd_b = (at_b * b) * w[1];
    to[0] = at_0 * w[0];
    to[1] = even_a + odd_a;
    to[2] = even_a - odd_a;
    to[3] = even_b + odd_b;
    to[4] = even_b - odd_b;
    to[5] = w[2];
  }
  /// Gᵀ·u
  template <class V>
  [[gnu::always_inline]] static void inverse(const V* u, V* to) {
    const V even_a = at_a * (u[1] + u[2]), even_b = at_b * (u[3] + u[4]);
    to[0] = at_0 * u[0] + even_a + even_b;
    to[1] = (at_a * a) * (u[1] - u[2]) + (at_b * b) * (u[3] - u[4]);
    to[2] = u[5] + a2 * even_a + b2 * even_b;
  }
};

/// Both sides of a square, with the interface of ImageFft; a slot has one value.
template <class V, class Map>
class Winograd {
  static constexpr int N = Map::kPoints, kSide = Map::kSide;

 public:
  template <class Read, class Write>
  [[gnu::always_inline]] static void forward(const Placement& at, const Read& read, const Write& write) {
    const int top = first_of(at.first_row), left = first_of(at.first_column);
    V columns[N][kSide];
    for (int place = 0; place < kSide; ++place) {
      V row[kSide], values[N] = {};
      const int y = place - top;
      if (is_below(y, at.rows)) {
        unrolled<kSide>([&](auto p) __attribute__((always_inline)) {
          row[p] = is_below(p - left, at.columns) ? read(y, p - left) : V{};
        });
        Map::forward(row, values);
      }
      unrolled<N>([&](auto i) __attribute__((always_inline)) { columns[i][place] = values[i]; });
    }
    for (int column = 0; column < N; ++column) {
      V values[N];
      Map::forward(columns[column], values);
      unrolled<N>([&](auto i) __attribute__((always_inline)) { write(i * N + column, values[i]); });
    }
  }

  template <class Read, class Write>
  [[gnu::always_inline]] static void inverse(const Placement& at, const Read& read, const Write& write) {
    const int top = first_of(at.first_row), left = first_of(at.first_column);
    V rows[kSide][N];
    for (int column = 0; column < N; ++column) {
      V values[N], places[kSide];
      unrolled<N>([&](auto i) __attribute__((always_inline)) { read(i * N + column, values[i]); });
      Map::inverse(values, places);
      unrolled<kSide>([&](auto p) __attribute__((always_inline)) { rows[p][column] = places[p]; });
    }
    for (int y = 0; y < at.rows; ++y) {
      V places[kSide];
      Map::inverse(rows[y + top], places);
      unrolled<kSide>([&](auto p) __attribute__((always_inline)) {
        if (is_below(p - left, at.columns)) write(y, p - left, places[p]);
      });
    }
  }

 private:
  /// The place of the first row or column, whose place on the circle is N − 1 if it lies before the tile.
  static constexpr int first_of(int on_circle) { return on_circle == 0 ? Map::kBefore : 0; }
  static constexpr bool is_below(int i, int count) {
    return static_cast<unsigned>(i) < static_cast<unsigned>(count);
  }
};

}  // namespace cifar_mpi::cpu::fft
