#include "cpu/vector_math.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {
namespace {

/// The functions at x, x + step …
template <int kLanes>
struct All {
  static void run(const float* x, float* exp, float* sigmoid, float* below) {
    using V = Vec<kLanes>;
    for (int i = 0; i < 16; i += kLanes) {
      const V at = load<V>(x + i);
      store(exp + i, exp_of(at));
      store(sigmoid + i, sigmoid_of(at));
      store(below + i, normal_of(at).below);
    }
  }
};

void expect_near(float found, double exact, double relative, float x, const char* what) {
  EXPECT_LE(std::abs(static_cast<double>(found) - exact), relative * exact) << what << " of " << x;
}

TEST(VectorMath, StaysWithinTheStatedErrors) {
  for (const VectorSet set : vector_sets_here()) {
    const auto run = version_for<All>(set);
    for (float first = -100.0f; first < 100.0f; first += 16 * 0.00137f) {
      float x[16], exp[16], sigmoid[16], below[16];
      for (int i = 0; i < 16; ++i) x[i] = first + 0.00137f * static_cast<float>(i);
      run(x, exp, sigmoid, below);
      for (int i = 0; i < 16; ++i) {
        const double at = static_cast<double>(x[i]);
        expect_near(exp[i], at < -87.0 ? 0.0 : std::exp(std::min(at, 88.0)), 2.5e-7, x[i], "exp");
        expect_near(sigmoid[i], at < -87.0 ? 0.0 : 1.0 / (1.0 + std::exp(-at)), 5e-7, x[i], "sigmoid");
        const double square = std::min(at * at, 156.25);
        expect_near(below[i], at < -12.5 ? below[i] : 0.5 * std::erfc(-at * std::sqrt(0.5)),
                    6e-7 + 6e-8 * square, x[i], "normal");
        EXPECT_LE(below[i], at < -12.5 ? 1e-35f : 1.0f);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(VectorMath, KeepsNanAndLimits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const VectorSet set : vector_sets_here()) {
    float x[16] = {NAN, -NAN, kInfinity, -kInfinity}, exp[16], sigmoid[16], below[16];
    version_for<All>(set)(x, exp, sigmoid, below);
    for (int i = 0; i < 2; ++i)
      EXPECT_TRUE(std::isnan(exp[i]) && std::isnan(sigmoid[i]) && std::isnan(below[i])) << name_of(set);
    EXPECT_EQ(sigmoid[2], 1.0f);
    EXPECT_EQ(below[2], 1.0f);
    EXPECT_EQ(exp[3] + sigmoid[3] + below[3], 0.0f);
    EXPECT_EQ(exp[4], 1.0f);
    EXPECT_EQ(sigmoid[4], 0.5f);
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
