#pragma once

/// Smaller images by a triangle filter ("bilinear, antialiased").
///
/// A row of `in` values becomes one of `out` ≤ `in` values, and value `to` of it is a mean of those values
/// that lie within in/out pixels of its centre:
///
///   y[to] = Σ w(to, from)·x[from] / Σ w(to, from),   w(to, from) = max(0, 1 − |(from + ½)·out/in − (to + ½)|)
///
/// Images are downsampled along their columns, then along their rows. The `BILINEAR` of Pillow and PyTorch's
/// `interpolate` with `antialias=True` compute the same. With out = in every value stays as it is.
namespace cifar_mpi::data {

/// 2·in·w(to, from), a whole number; sides of up to 2^14 pixels do not overflow.
constexpr int tap_weight(int in, int out, int to, int from) {
  const int offset = (2 * from + 1) * out - (2 * to + 1) * in;
  const int weight = 2 * in - (offset < 0 ? -offset : offset);
  return weight > 0 ? weight : 0;
}

/// The values with a weight above zero, [first, first + count), and the sum of their weights.
struct Taps {
  int first = 0;
  int count = 0;
  int sum = 0;
};
constexpr Taps taps_of(int in, int out, int to) {
  Taps taps;
  if (to > 0) taps.first = (2 * to - 1) * in / (2 * out);
  while (tap_weight(in, out, to, taps.first) == 0) ++taps.first;
  for (int from = taps.first; from < in; ++from, ++taps.count) {
    const int weight = tap_weight(in, out, to, from);
    if (weight == 0) break;
    taps.sum += weight;
  }
  return taps;
}

}  // namespace cifar_mpi::data
