#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

/// How the values of a tensor are distributed, counted where they lie; the formulas that host and device share.
namespace cifar_mpi::engine {

/// As many as TensorBoard's own summaries have.
inline constexpr int kHistogramBuckets = 30;

/// Where bucket `i` begins, or for `i` = kHistogramBuckets the last one ends: equal steps from the least to the
/// most of the values, in double, rounded once to fp32. The ends are the least and the most themselves (but that
/// -0 becomes 0).
constexpr float bucket_edge(float least, float most, int i) {
  if (i == kHistogramBuckets) return most + 0.0f;
  const double width = static_cast<double>(most) - static_cast<double>(least);
  return static_cast<float>(static_cast<double>(least) + width * i / kHistogramBuckets) + 0.0f;
}

/// A histogram of finite values, and what is not in it. Nothing is estimated: bucket i holds exactly the values x
/// with edges[i] <= x < edges[i + 1], the last also x = edges[30], compared in fp32 (bf16 values are fp32 numbers).
/// Values that are all equal are in the last bucket. All zeros when there is no finite value.
///
/// Equal widths, because that is what TensorBoard shows: other ones it would divide among its own. Counting by the
/// leading bits of a float takes one pass instead of two, but its buckets do not end where those end, and a value
/// then counts where it is not.
struct ValueCounts {
  float edges[kHistogramBuckets + 1] = {};
  std::uint32_t unused = 0;
  std::uint64_t buckets[kHistogramBuckets] = {};
  std::uint64_t zeros = 0;       ///< of either sign; in a bucket too
  std::uint64_t finite = 0;      ///< the sum of the buckets
  std::uint64_t not_finite = 0;  ///< NaNs and infinities, in no bucket

  std::uint64_t values() const { return finite + not_finite; }
};

/// Values [begin, begin + count) of a tensor, as they lie in memory.
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
