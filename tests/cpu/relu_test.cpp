#include "cpu/relu.hpp"

#include <gtest/gtest.h>

#include <cmath>
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
  plan_relu_backward("relu", value.size(), Precision::fp32, bytes(value), bytes(grad)).start(lane);
  for (std::size_t i = 0; i < value.size(); ++i)
    EXPECT_EQ(grad[i], value[i] > 0.0f ? -4.0f : 0.0f) << value[i];
}

TEST(Relu, MasksBf16Too) {
  std::vector<bf16> value, grad(kValues.size(), to_bf16(-4.0f));
  for (const float v : kValues) value.push_back(to_bf16(v));
  engine::Lane lane;
  plan_relu_backward("relu", value.size(), Precision::bf16, bytes(value), bytes(grad)).start(lane);
  for (std::size_t i = 0; i < value.size(); ++i) {
    EXPECT_EQ(to_float(grad[i]), to_float(value[i]) > 0.0f ? -4.0f : 0.0f) << kValues[i];
  }
}

TEST(Relu, LetsAPositiveNanPassSoThatDivergenceIsSeen) {
  std::vector<float> src{std::numeric_limits<float>::quiet_NaN()}, dst{0.0f};
  engine::Lane lane;
  plan_relu_forward("relu", 1, Precision::fp32, bytes(src), bytes(dst)).start(lane);
  EXPECT_TRUE(std::isnan(dst[0]));
}

}  // namespace
}  // namespace cifar_mpi::cpu
