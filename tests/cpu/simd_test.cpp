#include "cpu/simd.hpp"

#include <gtest/gtest.h>

#include <algorithm>

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

}  // namespace
}  // namespace cifar_mpi::cpu
