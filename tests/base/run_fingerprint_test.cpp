#include "cifar_mpi/base/run_fingerprint.hpp"

#include <gtest/gtest.h>

namespace cifar_mpi {
namespace {

TEST(RunFingerprint, ComesOutOfItsPackedTextAsItWentIn) {
  const RunFingerprint items{{"--lr", "0.1"}, {"empty", ""}, {"kernels", "a = b\nc"}, {"", "nameless"}};
  EXPECT_EQ(unpack(pack(items)), items);
  EXPECT_EQ(unpack(pack({})), RunFingerprint());
}

TEST(RunFingerprint, FindsAnItemByItsWholeName) {
  const RunFingerprint items{{"--lr-scaling", "none"}, {"--lr", "0.1"}};
  ASSERT_NE(find_item(items, "--lr"), nullptr);
  EXPECT_EQ(*find_item(items, "--lr"), "0.1");
  EXPECT_EQ(find_item(items, "--l"), nullptr);
}

TEST(RunFingerprint, ReadsNumbersThatAreNothingElse) {
  const RunFingerprint items{{"ranks", "12"}, {"lr", "0.1"}, {"threads", "4 "}, {"empty", ""}};
  EXPECT_EQ(find_number(items, "ranks"), 12);
  for (const char* item : {"lr", "threads", "empty", "steps"}) {
    EXPECT_EQ(find_number(items, item), std::nullopt) << item;
  }
}

}  // namespace
}  // namespace cifar_mpi
