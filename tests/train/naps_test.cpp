#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "support/contains.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::train {
namespace {

using test::test_world;

TEST(Naps, LetARankSleepThatWaitsLong) {
  const char* const loaded = std::getenv("LD_PRELOAD");
  if (test_world().size() == 1 || loaded == nullptr || !contains(loaded, "naps")) {
    GTEST_SKIP() << "needs 2 ranks or more, with support/naps.cpp in LD_PRELOAD";
  }
  test_world().barrier();
  const std::clock_t before = std::clock();
  if (test_world().rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  test_world().barrier();
  // A nap takes some 20 µs of the processor and lasts a millisecond.
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 8);
}

}  // namespace
}  // namespace cifar_mpi::train
