#include "cifar_mpi/engine/layout.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::engine {
namespace {

TEST(ParamLayout, RoundsEverySpanUpToSixteenFloats) {
  ParamLayout layout;
  for (const std::size_t floats : {10, 16, 17, 0, 1}) append(layout, floats);
  const std::size_t offsets[] = {0, 16, 32, 64, 64};
  const std::size_t sizes[] = {16, 16, 32, 0, 16};
  ASSERT_EQ(layout.entries.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(layout.entries[i].offset, offsets[i]) << i;
    EXPECT_EQ(layout.entries[i].floats, sizes[i]) << i;
  }
  EXPECT_EQ(layout.floats, 80u);
}

TEST(ControlLayout, GivesEveryRankASlotAfterTheHeader) {
  for (const int ranks : {1, 2, 3, 8}) {
    const ControlLayout layout{ranks};
    EXPECT_EQ(layout.slot(0), ControlLayout::header_floats);
    EXPECT_EQ(layout.floats() % 16, 0u);
    EXPECT_GE(layout.floats(), layout.slot(ranks - 1) + ControlLayout::slot_floats);
  }
}

TEST(Precision, HasANameOfItsOwnForEachValue) {
  std::set<std::string> names;
  for (const Precision p : {Precision::automatic, Precision::fp32, Precision::tf32, Precision::bf16}) {
    names.emplace(to_string(p));
  }
  EXPECT_EQ(names, (std::set<std::string>{"auto", "fp32", "tf32", "bf16"}));
}

}  // namespace
}  // namespace cifar_mpi::engine
