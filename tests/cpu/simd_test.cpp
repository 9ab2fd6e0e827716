#include "cpu/simd.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cifar_mpi/cpu/backend.hpp"

namespace cifar_mpi::cpu {
namespace {

struct Limited {
  explicit Limited(VectorSet most) { limit_vectors(most); }
  ~Limited() { limit_vectors(VectorSet::avx512); }
};

TEST(Vectors, AreNoWiderThanTheLimit) {
  const std::vector<VectorSet> all = vector_sets_here();
  for (const VectorSet most : {VectorSet::portable, VectorSet::avx2, VectorSet::avx512}) {
    const Limited limited(most);
    EXPECT_EQ(vector_sets_here().back(), std::min(most, all.back()));
  }
}

struct Which {
  static int run(int) { return 0; }
};

TEST(Vectors, OfTheBestVersionAreThoseThatAreLet) {
  const Limited limited(VectorSet::portable);
  EXPECT_EQ(best_version<Which>(), (&run_baseline<Which, int, int>));
}

// Half of it if pipes are as wide as AVX-512's vectors, all of it if not; a tenth if chains do not fit the
// registers. Each rate is the best of several tries, against load.
TEST(PeakFlops, OfAvx2IsAtLeastAboutHalfOfAvx512s) {
  if (!has_avx512()) GTEST_SKIP() << "this cpu has no AVX-512 to compare with";
  double avx2 = 0.0, avx512 = 0.0;
  for (int moment = 0; moment < 5; ++moment) {
    avx2 = std::max(avx2, measure_peak_flops(VectorSet::avx2, 1, 0.002));
    avx512 = std::max(avx512, measure_peak_flops(VectorSet::avx512, 1, 0.002));
  }
  EXPECT_GT(avx2, 0.3 * avx512);
}

TEST(PeakFlops, AreMeasuredInNoTime) {
  for (const int threads : {1, 3}) {
    EXPECT_GT(measure_peak_flops(threads, 0.0), 0.0) << threads;
    EXPECT_GT(measure_copy_rate(threads, 0.0), 0.0) << threads;
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
