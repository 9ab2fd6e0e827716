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

/// kRows from row m x (kVectors vectors of columns) of C, which stay in registers during the loop over k. `m` is a
/// multiple of kStart.
template <class V, int kRows, int kVectors, bool kAdds, int kStart>
[[gnu::always_inline]] inline void tile(const ProductShape& shape, int m, const float* a, const float* b,
                                        float* c) {
  constexpr int kLanes = kLanesIn<V>;
  const std::ptrdiff_t begin = shape.a.to_row(m, kLanes), b_panel = shape.b.panel;
  std::ptrdiff_t rows[kRows];
  constexpr bool kInPanel = kLanes % kRows == 0 && kStart % kRows == 0;
  for (int i = 0; i < kRows; ++i)
    rows[i] = kInPanel ? i * shape.a.row : shape.a.to_row(m + i, kLanes) - begin;
  a += begin;
  c += m * shape.c.row;
  V sums[kRows][kVectors] = {};
  const auto for_sums = [&](const auto& body) __attribute__((always_inline)) {
    unrolled<kRows>([&](auto i) __attribute__((always_inline)) {
      unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
        body(sums[i][j], c + i * shape.c.row + j * shape.c.panel);
      });
    });
  };
  if constexpr (kAdds)
    for_sums([](V & sum, const float* from) __attribute__((always_inline)) { sum = load<V>(from); });
  for (int piece = 0; piece < shape.pieces; ++piece) {
    const float* from_a = a + piece * shape.a.piece;
    const float* from_b = b + piece * shape.b.piece;
    const int depth = shape.depth_of(piece);
    for (int k = 0; k < depth; ++k, from_a += shape.a.depth, from_b += shape.b.depth) {
      V values[kVectors];
      unrolled<kVectors>([&](auto j)
                             __attribute__((always_inline)) { values[j] = load<V>(from_b + j * b_panel); });
      unrolled<kRows>([&](auto i) __attribute__((always_inline)) {
        const V factor = broadcast<V>(from_a[rows[i]]);
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) { sums[i][j] += factor * values[j]; });
      });
    }
  }
  for_sums([](const V& sum, float* to) __attribute__((always_inline)) { store(to, sum); });
}

template <class V, int kVectors, bool kAdds>
[[gnu::always_inline]] inline void strip(const ProductShape& shape, const float* a, const float* b,
                                         float* c) {
  constexpr int kRows = rows_of_real_tile(kLanesIn<V>) / kVectors, kLess = 4;
  const int end = shape.first + shape.rows;
  int m = shape.first;
  for (; m + kRows <= end; m += kRows) tile<V, kRows, kVectors, kAdds, kRows>(shape, m, a, b, c);
  if constexpr (kRows > kLess)
    for (; m + kLess <= end; m += kLess) tile<V, kLess, kVectors, kAdds, kRows>(shape, m, a, b, c);
  for (; m < end; ++m) tile<V, 1, kVectors, kAdds, 1>(shape, m, a, b, c);
}

template <bool kAdds>
struct Multiply {
  template <int kLanes>
  struct Version {
    [[gnu::always_inline]] static void run(const ProductShape& shape, const float* a, const float* b,
                                           float* c) {
      using V = Vec<kLanes>;
      int panels = (shape.columns + kLanes - 1) / kLanes;
      const auto strips_of = [&](auto vectors) __attribute__((always_inline)) {
        for (; panels >= vectors; panels -= vectors) {
          strip<V, vectors, kAdds>(shape, a, b, c);
          b += vectors * shape.b.panel;
          c += vectors * shape.c.panel;
        }
      };
      if constexpr (kLanes == 16) strips_of(std::integral_constant<int, 4>{});
      strips_of(std::integral_constant<int, 2>{});
      strips_of(std::integral_constant<int, 1>{});
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
