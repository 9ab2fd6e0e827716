#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/engine/value_counts.hpp"

namespace cifar_mpi::test {

/// Counts like engine::ValueCounts, value by value; computes the edges without the tested code.
inline engine::ValueCounts naive_counts(const std::vector<float>& values) {
  engine::ValueCounts counts;
  float least = 0.0f, most = 0.0f;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      ++counts.not_finite;
      continue;
    }
    if (counts.finite == 0 || value < least) least = value;
    if (counts.finite == 0 || value > most) most = value;
    ++counts.finite;
    if (std::fpclassify(value) == FP_ZERO) ++counts.zeros;
  }
  if (counts.finite == 0) return counts;
  const long double width = static_cast<long double>(most) - static_cast<long double>(least);
  for (int i = 0; i <= 30; ++i)
    counts.edges[i] =
        static_cast<float>(static_cast<double>(static_cast<long double>(least) + width * i / 30));
  counts.edges[30] = most;
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    int bucket = 29;
    while (value < counts.edges[bucket]) --bucket;
    ++counts.buckets[bucket];
  }
  return counts;
}

/// The edges within a unit in the last place of the naive ones (which are rounded from more digits), the ends
/// exactly, and every value exactly between the given edges.
inline void expect_counts(const engine::ValueCounts& found, const std::vector<float>& values) {
  const engine::ValueCounts wanted = naive_counts(values);
  EXPECT_EQ(found.finite, wanted.finite);
  EXPECT_EQ(found.not_finite, wanted.not_finite);
  EXPECT_EQ(found.zeros, wanted.zeros);
  EXPECT_EQ(found.edges[0], wanted.edges[0]);
  EXPECT_EQ(found.edges[30], wanted.edges[30]);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int i = 0; i <= 30; ++i) {
    EXPECT_GE(found.edges[i], std::nextafter(wanted.edges[i], -kInfinity)) << i;
    EXPECT_LE(found.edges[i], std::nextafter(wanted.edges[i], kInfinity)) << i;
  }
  std::uint64_t buckets[30] = {};
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    int bucket = 29;
    while (value < found.edges[bucket]) --bucket;
    ++buckets[bucket];
  }
  for (int i = 0; i < 30; ++i) EXPECT_EQ(found.buckets[i], buckets[i]) << "bucket " << i;
}

/// Few values and many; the last is longer than any piece that is taken at once.
inline std::vector<std::vector<float>> value_samples() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kMost = std::numeric_limits<float>::max();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  std::vector<std::vector<float>> samples{{3.0f},
                                          {-0.0f},
                                          {0.0f, -0.0f, -0.0f},
                                          {kNaN, kInfinity, -kInfinity, -kNaN},
                                          {kNaN, -2.0f, kInfinity, 5.0f, -kInfinity, 5.0f, 0.0f},
                                          {kTiny, -kTiny, 0.0f, 20 * kTiny, -7 * kTiny},
                                          {kMost, -kMost, 1.0f},
                                          {1.0f, std::nextafter(1.0f, 2.0f)},
                                          {-1e-30f, 1e30f, 0.0f, 7.0f}};
  std::vector<float> halves;  // each lies on an edge
  for (int i = -15; i <= 15; ++i) halves.push_back(0.5f * static_cast<float>(i));
  samples.push_back(halves);
  std::vector<float> many;
  for (std::uint32_t i = 0; i < 70'001; ++i) {
    const auto bits = random4(5, RandomPurpose::synthetic, i, 0);
    const float sign = (bits[0] & 1) != 0 ? -1.0f : 1.0f;
    const float value = sign * std::ldexp(1.0f + static_cast<float>(bits[1] >> 9) * 0x1p-23f,
                                          static_cast<int>(bits[2] % 12) - 10);
    many.push_back(bits[3] % 3 == 0 ? 0.0f : bits[3] % 1009 == 1 ? kNaN : value);
  }
  samples.push_back(many);
  return samples;
}

}  // namespace cifar_mpi::test
