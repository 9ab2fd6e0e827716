#include "comm/cores.hpp"

#include <gtest/gtest.h>

namespace cifar_mpi::comm {
namespace {

CoreMask cores(std::initializer_list<int> list) {
  CoreMask mask(2, 0);
  for (const int core : list) mask[static_cast<std::size_t>(core / 64)] |= std::uint64_t{1} << (core % 64);
  return mask;
}

TEST(CoreShare, DividesACommonMask) {
  const std::vector<CoreMask> masks(3, cores({0, 1, 2, 3, 64, 65, 66}));
  for (std::size_t rank = 0; rank < masks.size(); ++rank) {
    const CoreShare share = share_cores(masks, rank, masks[0]);
    EXPECT_EQ(share.fair_threads, 2);
    EXPECT_EQ(share.unused_cores, 0);
    EXPECT_FALSE(share.oversubscribed);
  }
}

TEST(CoreShare, DoesNotDivideMasksThatTheLauncherHasDivided) {
  const std::vector<CoreMask> masks = {cores({0, 1}), cores({64, 65, 66})};
  EXPECT_EQ(share_cores(masks, 0, cores({0, 1, 64, 65, 66})).fair_threads, 2);
  EXPECT_EQ(share_cores(masks, 1, cores({0, 1, 64, 65, 66})).fair_threads, 3);
}

TEST(CoreShare, DividesMasksThatOnlyOverlap) {
  const std::vector<CoreMask> masks = {cores({0, 1, 2, 3}), cores({3, 4}), cores({5})};
  EXPECT_EQ(share_cores(masks, 0, cores({})).fair_threads, 2);
  EXPECT_EQ(share_cores(masks, 1, cores({})).fair_threads, 1);
  EXPECT_EQ(share_cores(masks, 2, cores({})).fair_threads, 1);
}

TEST(CoreShare, NeverFallsBelowOneThread) {
  const std::vector<CoreMask> masks(4, cores({0, 1}));
  EXPECT_EQ(share_cores(masks, 3, masks[0]).fair_threads, 1);
}

TEST(CoreShare, CountsCoresNobodyUses) {
  const std::vector<CoreMask> masks = {cores({0}), cores({1})};
  EXPECT_EQ(share_cores(masks, 0, cores({0, 1, 2, 3, 70})).unused_cores, 3);
}

TEST(CoreShare, IsOversubscribedWithMoreRanksThanCores) {
  const std::vector<CoreMask> masks(3, cores({0, 1}));
  EXPECT_TRUE(share_cores(masks, 0, masks[0]).oversubscribed);
}

TEST(CoreShare, IsOversubscribedWhenRanksCrowdOnOneCoreOfMany) {
  const std::vector<CoreMask> masks = {cores({0}), cores({0}), cores({1, 2, 3})};
  for (std::size_t rank = 0; rank < masks.size(); ++rank) {
    EXPECT_TRUE(share_cores(masks, rank, cores({0, 1, 2, 3})).oversubscribed) << "rank " << rank;
  }
}

TEST(CoreShare, IsNotOversubscribedByAChainOfMasks) {
  const std::vector<CoreMask> masks = {cores({0, 1}), cores({1, 2}), cores({2, 3})};
  EXPECT_FALSE(share_cores(masks, 1, cores({0, 1, 2, 3})).oversubscribed);
}

TEST(CoreMask, LookingAtWhatIsAllowedKeepsTheBinding) {
  const CoreMask before = affinity_mask();
  EXPECT_GE(count_cores(before), 1);
  EXPECT_GE(count_cores(allowed_mask()), count_cores(before));
  EXPECT_EQ(affinity_mask(), before);
}

}  // namespace
}  // namespace cifar_mpi::comm
