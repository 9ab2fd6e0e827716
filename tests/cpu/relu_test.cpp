#include "cpu/relu.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/bf16.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Precision;

constexpr float kTiny = std::numeric_limits<float>::denorm_min();
const std::vector<float> kValues{-1.0f, -0.0f, 0.0f, 0.5f, -kTiny, kTiny, 3.0f, -7.0f, 1e30f, 2.0f, -2.0f};

template <class T>
std::byte* bytes(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

TEST(Relu, KeepsWhatIsPositive) {
  std::vector<float> src = kValues, dst(src.size(), 9.0f);
  engine::Lane lane;
  plan_relu_forward("relu", src.size(), Precision::fp32, bytes(src), bytes(dst)).start(lane);
  for (std::size_t i = 0; i < src.size(); ++i) {
    EXPECT_EQ(dst[i], src[i] > 0.0f ? src[i] : 0.0f) << src[i];
    EXPECT_FALSE(std::signbit(dst[i])) << src[i];
  }
}

TEST(Relu, MasksTheGradientWhereTheValueIsNotPositive) {
  std::vector<float> value = kValues, grad(value.size(), -4.0f);
  engine::Lane lane;
  plan_relu_mask("relu", value.size(), Precision::fp32, bytes(value), bytes(grad), bytes(grad)).start(lane);
  for (std::size_t i = 0; i < value.size(); ++i)
    EXPECT_EQ(grad[i], value[i] > 0.0f ? -4.0f : 0.0f) << value[i];
}

TEST(Relu, MasksBf16Too) {
  std::vector<bf16> value, grad(kValues.size(), to_bf16(-4.0f));
  for (const float v : kValues) value.push_back(to_bf16(v));
  engine::Lane lane;
  plan_relu_mask("relu", value.size(), Precision::bf16, bytes(value), bytes(grad), bytes(grad)).start(lane);
  for (std::size_t i = 0; i < value.size(); ++i) {
    EXPECT_EQ(to_float(grad[i]), to_float(value[i]) > 0.0f ? -4.0f : 0.0f) << kValues[i];
  }
}

// x86 sets the sign bit of the NaNs that it generates.
TEST(Relu, LetsWhatIsNotANumberPassSoThatDivergenceIsSeen) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  const auto fp32 = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  std::vector<float> src{nan, -nan, fp32(0x7F800001u), fp32(0xFF800001u), infinity, -infinity};
  std::vector<float> dst(src.size(), 9.0f);
  engine::Lane lane;
  plan_relu_forward("relu", src.size(), Precision::fp32, bytes(src), bytes(dst)).start(lane);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(dst[i])) << i;
  EXPECT_EQ(dst[4], infinity);
  EXPECT_EQ(dst[5], 0.0f);
}

TEST(Relu, LetsWhatIsNotANumberPassInBf16) {
  std::vector<std::uint16_t> src{0x7FC0, 0xFFC0, 0x7F81, 0xFF81, 0x7F80, 0xFF80}, dst(6, 1);
  engine::Lane lane;
  plan_relu_forward("relu", src.size(), Precision::bf16, bytes(src), bytes(dst)).start(lane);
  EXPECT_EQ(dst, (std::vector<std::uint16_t>{0x7FC0, 0xFFC0, 0x7F81, 0xFF81, 0x7F80, 0}));
}

}  // namespace
}  // namespace cifar_mpi::cpu
