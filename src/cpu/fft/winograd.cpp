#include "cpu/fft/winograd.hpp"

#include "cpu/fft/products.hpp"
#include "cpu/fft/versions.hpp"

namespace cifar_mpi::cpu::fft {
namespace {

template <class Map>
struct Filtering {
  static constexpr bool kInverts = Map::kInverts;
  static constexpr int kSide = Map::kSide;
  template <class V>
  using Of = Winograd<V, Map>;
};

/// Returns what `body` returns for the part, passed as a type.
template <class Body>
auto with_part(WinogradPart part, const Body& body) {
  if (part == WinogradPart::reach) return body(Filtering<WinogradReach>{});
  if (part == WinogradPart::tile) return body(Filtering<WinogradTile>{});
  return body(Filtering<WinogradTaps>{});
}

/// kRows x (kVectors vectors of columns) of C, which stay in registers during the loop over k.
template <class V, int kRows, int kVectors, bool kAdds>
[[gnu::always_inline]] inline void tile(const ProductShape& shape, const float* a, const float* b, float* c) {
  V sums[kRows][kVectors] = {};
  const std::ptrdiff_t row = shape.a.row, c_row = shape.c.row;
  const auto for_sums = [&](const auto& body) __attribute__((always_inline)) {
    unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
      unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
        body(sums[m][j], c + m * c_row + j * kLanesIn<V>);
      });
    });
  };
  if constexpr (kAdds)
    for_sums([](V & sum, const float* from) __attribute__((always_inline)) { sum = load<V>(from); });
  for (int piece = 0; piece < shape.pieces; ++piece) {
    const float* from_a = a + piece * shape.a.piece;
    const float* from_b = b + piece * shape.b.piece;
    for (int k = 0; k < shape.depth; ++k, from_a += shape.a.depth, from_b += shape.b.depth) {
      V values[kVectors];
      unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
        values[j] = load<V>(from_b + j * kLanesIn<V>);
      });
      unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
        const V factor = broadcast<V>(from_a[m * row]);
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) { sums[m][j] += factor * values[j]; });
      });
    }
  }
  for_sums([](const V& sum, float* to) __attribute__((always_inline)) { store(to, sum); });
}

template <class V, int kVectors, bool kAdds>
[[gnu::always_inline]] inline void strip(const ProductShape& shape, const float* a, const float* b,
                                         float* c) {
  constexpr int kRows = rows_of_real_tile(kLanesIn<V>) / kVectors, kLess = 4;
  const auto rows_from = [&](int m, auto rows) __attribute__((always_inline)) {
    tile<V, rows, kVectors, kAdds>(shape, a + m * shape.a.row, b, c + m * shape.c.row);
  };
  int m = 0;
  for (; m + kRows <= shape.rows; m += kRows) rows_from(m, std::integral_constant<int, kRows>{});
  if constexpr (kRows > kLess)
    for (; m + kLess <= shape.rows; m += kLess) rows_from(m, std::integral_constant<int, kLess>{});
  for (; m < shape.rows; ++m) rows_from(m, std::integral_constant<int, 1>{});
}

template <bool kAdds>
struct Multiply {
  template <int kLanes>
  struct Version {
    [[gnu::always_inline]] static void run(const ProductShape& shape, const float* a, const float* b,
                                           float* c) {
      using V = Vec<kLanes>;
      int j = 0;
      if constexpr (kLanes == 16)
        for (; j + 4 * kLanes <= shape.columns; j += 4 * kLanes) strip<V, 4, kAdds>(shape, a, b + j, c + j);
      for (; j + 2 * kLanes <= shape.columns; j += 2 * kLanes) strip<V, 2, kAdds>(shape, a, b + j, c + j);
      for (; j < shape.columns; j += kLanes) strip<V, 1, kAdds>(shape, a, b + j, c + j);
    }
  };
};

}  // namespace

Transforms winograd_transforms(WinogradPart part, VectorSet set, engine::Precision precision) {
  return with_part(part, [&](auto transform) {
    using Transform = decltype(transform);
    return precision == engine::Precision::bf16 ? versions_of<Transform, bf16>(set)
                                                : versions_of<Transform, float>(set);
  });
}

TransformFlops winograd_flops(WinogradPart part, const Placement& at) {
  return with_part(part, [&](auto transform) { return flops_of<decltype(transform)>(at); });
}

Product real_product_for(VectorSet set, bool adds) {
  return adds ? version_for<Multiply<true>::Version>(set) : version_for<Multiply<false>::Version>(set);
}

}  // namespace cifar_mpi::cpu::fft
