#include "cpu/bf16.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/task_runs.hpp"

namespace cifar_mpi::cpu {
namespace {

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(Bf16, EveryValueSurvivesTheWayToFloatAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bf16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(wide)))) << bits;
    } else {
      EXPECT_EQ(to_bf16(wide).bits, bits);
    }
  }
}

TEST(Bf16, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(to_bf16(float_of(0x3F808000)).bits, 0x3F80);  // half way, down to even
  EXPECT_EQ(to_bf16(float_of(0x3F818000)).bits, 0x3F82);  // half way, up to even
  EXPECT_EQ(to_bf16(float_of(0x3F808001)).bits, 0x3F81);
  EXPECT_EQ(to_bf16(float_of(0x3F817FFF)).bits, 0x3F81);
  EXPECT_EQ(to_bf16(float_of(0xBF818000)).bits, 0xBF82);
}

TEST(Bf16, IsNeverFurtherThanHalfAUnitInTheLastPlace) {
  for (std::uint32_t i = 0; i < 10000; ++i) {
    const float value = 100.0f * testing::noise(i, 1);
    EXPECT_LE(std::abs(to_float(to_bf16(value)) - value), testing::kBf16Unit * std::abs(value));
  }
}

TEST(Bf16, OverflowsToInfinity) {
  EXPECT_EQ(to_float(to_bf16(std::numeric_limits<float>::max())), std::numeric_limits<float>::infinity());
  EXPECT_EQ(to_float(to_bf16(-std::numeric_limits<float>::infinity())),
            -std::numeric_limits<float>::infinity());
}

TEST(Bf16, KeepsNaNAndItsSignWhateverThePayload) {
  for (const std::uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0x7FC00000u, 0xFF800001u, 0xFFFFFFFFu}) {
    const float back = to_float(to_bf16(float_of(bits)));
    EXPECT_TRUE(std::isnan(back)) << bits;
    EXPECT_EQ(std::signbit(back), (bits >> 31) != 0) << bits;
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
