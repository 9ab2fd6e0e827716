#include "cpu/peak.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace cifar_mpi::cpu {
namespace {

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

}  // namespace
}  // namespace cifar_mpi::cpu
