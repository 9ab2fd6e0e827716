#include "comm/cores.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "cifar_mpi/base/clock.hpp"
#include "support/temp_dir.hpp"

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

TEST(CoreShare, TakesNoMoreThanItsPartOfAQuota) {
  const std::vector<CoreMask> masks(2, cores({0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(share_cores(masks, 0, masks[0], 5.5).fair_threads, 2);
  EXPECT_EQ(share_cores(masks, 0, masks[0], 100.0).fair_threads, 4);
  EXPECT_EQ(share_cores(masks, 0, masks[0], 0.5).fair_threads, 1);
}

/// A file system of cgroups.
class CpuQuota : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = root() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<double> quota(const std::string& own_groups) const {
    write("own", own_groups);
    return cpu_quota(root(), root() / "own");
  }

 private:
  std::filesystem::path root() const { return folder_.path(); }
  TempDir folder_;
};

TEST_F(CpuQuota, IsTheLeastOfTheGroupAndThoseAboveIt) {
  EXPECT_EQ(quota("0::/job/step\n"), std::nullopt);
  write("job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(quota("0::/job/step\n"), std::nullopt);
  write("job/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota("0::/job/step\n"), 2.5);
  write("job/step/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota("0::/job/step\n"), 0.5);
}

TEST_F(CpuQuota, IsThatOfTheRootInAContainerThatSeesTheHostsPath) {
  write("cpu.max", "400000 100000\n");
  EXPECT_EQ(quota("0::/../../not/here\n"), 4.0);
}

TEST_F(CpuQuota, IsReadFromVersionOne) {
  write("cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n");
  write("cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota("2:memory:/\n4:cpu,cpuacct:/docker\n"), std::nullopt);
  write("cpu,cpuacct/docker/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(quota("2:memory:/\n4:cpu,cpuacct:/docker\n"), 3.0);
}

TEST(CpuQuotaHere, IsNoneOrMoreThanNothing) {
  EXPECT_GT(cpu_quota().value_or(1.0), 0.0);
  EXPECT_EQ(cpu_quota("/nowhere", "/nowhere/own"), std::nullopt);
}

TEST(BusySeconds, GrowWithWorkOnTheMasksCores) {
  const CoreMask mask = affinity_mask();
  const double before = busy_seconds(mask), end = steady_seconds() + 0.3;
  while (steady_seconds() < end) {
  }
  EXPECT_GT(busy_seconds(mask), before);
  EXPECT_EQ(busy_seconds(CoreMask(mask.size(), 0)), 0.0);
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
  // On a thread of its own, bound to one core, so that the other tests stay where they were.
  std::thread([] {
    CoreMask one = affinity_mask();
    const int available = count_cores(one);
    ASSERT_GE(available, 1);
    while (count_cores(one) > 1) {
      for (std::uint64_t& word : one) {
        if (count_cores(one) > 1) word &= word - 1;
      }
    }
    ASSERT_EQ(
        sched_setaffinity(0, one.size() * sizeof(one[0]), reinterpret_cast<const cpu_set_t*>(one.data())), 0);
    EXPECT_GE(count_cores(allowed_mask()), available);
    EXPECT_EQ(affinity_mask(), one);
  }).join();
}

}  // namespace
}  // namespace cifar_mpi::comm
