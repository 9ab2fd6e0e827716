#include "cifar_mpi/base/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "cifar_mpi/base/random_normals.hpp"

namespace cifar_mpi {
namespace {

std::vector<double> normals(std::uint64_t seed, std::uint32_t tensor, std::uint64_t count) {
  std::vector<double> values(count);
  for (std::uint64_t i = 0; i < count; ++i) values[i] = truncated_normal(seed, tensor, i);
  return values;
}

/// Distribution function of the standard normal cut at ±2.
double truncated_cdf(double z) {
  const auto phi = [](double v) { return 0.5 * std::erfc(-v / std::sqrt(2.0)); };
  return (phi(z) - phi(-2.0)) / (phi(2.0) - phi(-2.0));
}

TEST(Philox, GivesTheKnownAnswersOfItsAuthors) {
  // The three known-answer vectors that Random123 publishes for philox4x32-10.
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Random4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (Random4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Random4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, RunsAtCompileTime) {
  static_assert(philox({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5);
  static_assert(uniform01(0xffffffff) < 1.0f);
}

TEST(Random4Function, DependsOnEveryBitOfItsArguments) {
  std::set<Random4> seen;
  const auto purpose = RandomPurpose::augment;
  for (int bit = 0; bit < 64; ++bit) {
    seen.insert(random4(std::uint64_t{1} << bit, purpose, 0, 0));
    seen.insert(random4(0, purpose, std::uint64_t{1} << bit, 0));
  }
  for (int bit = 0; bit < 32; ++bit) seen.insert(random4(0, purpose, 0, std::uint32_t{1} << bit));
  for (const auto other : {RandomPurpose::initial_value, RandomPurpose::sample_order, RandomPurpose::augment,
                           RandomPurpose::synthetic}) {
    seen.insert(random4(0, other, 0, 0));
  }
  EXPECT_EQ(seen.size(), 64u + 64u + 32u + 4u);
}

TEST(Uniform01, StaysInTheHalfOpenIntervalAndIsExact) {
  EXPECT_EQ(uniform01(0), 0.0f);
  EXPECT_EQ(uniform01(0x80000000u), 0.5f);
  EXPECT_EQ(uniform01(0xffffffffu), 1.0f - 0x1.0p-24f);
}

TEST(UniformBelow, HitsEveryValueEquallyOften) {
  EXPECT_EQ(uniform_below(0xffffffffu, 9), 8u);
  EXPECT_EQ(uniform_below(0xffffffffu, 1), 0u);
  constexpr std::uint32_t kValues = 9;
  constexpr int kDraws = 90000;
  std::vector<int> hits(kValues);
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    ++hits[uniform_below(random4(3, RandomPurpose::augment, i, 0)[0], kValues)];
  }
  // Binomial: standard deviation sqrt(n·p·(1 − p)) = 94; five of them.
  for (const int hit : hits) EXPECT_NEAR(hit, kDraws / 9.0, 5.0 * std::sqrt(kDraws / 9.0 * 8.0 / 9.0));
}

TEST(TruncatedNormal, HasTheMomentsOfANormalCutAtTwo) {
  // With phi the density at 2 and Z = erf(sqrt 2): variance 1 − 4·phi/Z = 0.773741, fourth moment 3·0.773741
  // − 16·phi/Z = 1.416187, so the variance of the square is 0.817512. Five standard errors each.
  const std::vector<double> values = normals(42, 3, 200000);
  const auto n = static_cast<double>(values.size());
  double sum = 0.0, squares = 0.0, neighbours = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_LT(std::abs(values[i]), 2.0);
    sum += values[i];
    squares += values[i] * values[i];
    if (i > 0) neighbours += values[i] * values[i - 1];
  }
  EXPECT_NEAR(sum / n, 0.0, 5.0 * std::sqrt(0.773741 / n));
  EXPECT_NEAR(squares / n, 0.773741, 5.0 * std::sqrt(0.817512 / n));
  EXPECT_NEAR(neighbours / n, 0.0, 5.0 * 0.773741 / std::sqrt(n));
}

TEST(TruncatedNormal, FollowsTheDistributionFunction) {
  std::vector<double> values = normals(7, 0, 100000);
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  double distance = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double expected = truncated_cdf(values[i]);
    distance = std::max(
        {distance, expected - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - expected});
  }
  EXPECT_LT(distance * std::sqrt(n), 1.95);  // Kolmogorov: exceeded with probability 0.001 by a right sample
}

TEST(TruncatedNormal, HasTheSameBitsInBlocks) {
  // Of 2·10^6 numbers some 50 are too close to where a rounding changes, and a twentieth lies outside the cut.
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{5}, ~std::uint64_t{0}}) {
    std::vector<float> values(seed == 5 ? 2000000 : 1003);
    truncated_normals(seed, 6, values);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
      wrong += bits(values[i]) != bits(truncated_normal(seed, 6, i)) ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0u) << seed;
  }
  truncated_normals(1, 1, {});
}

TEST(TruncatedNormal, IsAPureFunctionThatDiffersByTensorAndSeed) {
  EXPECT_EQ(truncated_normal(1, 2, 3), truncated_normal(1, 2, 3));
  const std::vector<double> base = normals(1, 2, 20000);
  const std::vector<std::vector<double>> others{normals(1, 3, 20000), normals(2, 2, 20000)};
  for (const std::vector<double>& other : others) {
    double product = 0.0;
    for (std::size_t i = 0; i < base.size(); ++i) product += base[i] * other[i];
    EXPECT_NEAR(product / 20000.0, 0.0, 5.0 * 0.773741 / std::sqrt(20000.0));
  }
}

}  // namespace
}  // namespace cifar_mpi
