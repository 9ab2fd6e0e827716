#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

/// Distribution of a tensor's values, counted in place; host and device share the formulas.
namespace cifar_mpi::engine {

/// As many as in TensorBoard's own summaries.
inline constexpr int kHistogramBuckets = 30;

/// The lower edge of bucket `i`, or for `i` = kHistogramBuckets the upper edge of the last: equal steps from
/// the least to the largest value, computed in double and rounded once to fp32. The outer edges are these two
/// values themselves (except that -0 becomes 0).
constexpr float bucket_edge(float least, float most, int i) {
  if (i == kHistogramBuckets) return most + 0.0f;
  const double width = static_cast<double>(most) - static_cast<double>(least);
  return static_cast<float>(static_cast<double>(least) + width * i / kHistogramBuckets) + 0.0f;
}

/// A histogram of the finite values, and counts of the others. Nothing is estimated: bucket i holds exactly
/// the values x with edges[i] <= x < edges[i + 1], the last bucket also x = edges[30], compared in fp32 (bf16
/// values are fp32 numbers). If all values are equal, they are in the last bucket. Without finite values all
/// counts are zero.
///
/// Widths are equal because TensorBoard shows equal widths and would redistribute others. Buckets by the
/// leading bits of a float would save one of two passes, but their edges differ from those, so values would
/// be counted in the wrong bucket.
struct ValueCounts {
  float edges[kHistogramBuckets + 1] = {};
  std::uint32_t unused = 0;
  std::uint64_t buckets[kHistogramBuckets] = {};
  std::uint64_t zeros = 0;       ///< of either sign; in a bucket too
  std::uint64_t finite = 0;      ///< the sum of the buckets
  std::uint64_t not_finite = 0;  ///< NaNs and infinities, in no bucket

  std::uint64_t values() const { return finite + not_finite; }
};

/// Values [begin, begin + count) of a tensor in memory order.
struct ValueRun {
  std::size_t begin = 0;
  std::size_t count = 0;
  bool operator==(const ValueRun&) const = default;
};

/// The places below `count` that hold a value, for a tensor with padding.
template <class HoldsValue>
std::vector<ValueRun> runs_where(std::size_t count, const HoldsValue& holds_value) {
  std::vector<ValueRun> runs;
  for (std::size_t i = 0; i < count; ++i) {
    if (!holds_value(i)) continue;
    if (runs.empty() || runs.back().begin + runs.back().count != i) runs.push_back({i, 0});
    ++runs.back().count;
  }
  return runs;
}

}  // namespace cifar_mpi::engine
