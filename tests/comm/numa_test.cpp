#include "comm/numa.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "support/temp_dir.hpp"

namespace cifar_mpi::comm {
namespace {

CoreMask range(int first, int last) {
  CoreMask mask(2, 0);
  for (int core = first; core <= last; ++core)
    mask[static_cast<std::size_t>(core / 64)] |= std::uint64_t{1} << (core % 64);
  return mask;
}

/// Domains of `cores` cores each.
std::vector<NumaDomain> topology(int domains, int cores) {
  std::vector<NumaDomain> all;
  for (int d = 0; d < domains; ++d) all.push_back({d, range(d * cores, (d + 1) * cores - 1)});
  return all;
}

/// The places of `ranks` ranks that all start with the mask `open`, which is all they are allowed.
std::vector<std::string> homes(std::size_t ranks, const CoreMask& open,
                               const std::vector<NumaDomain>& domains) {
  const std::vector<CoreMask> masks(ranks, open);
  std::vector<std::string> places;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    places.push_back(place_text(home_mask(masks, rank, open, domains), domains));
  return places;
}

using Places = std::vector<std::string>;

TEST(HomeMask, GivesEachRankADomain) {
  EXPECT_EQ(homes(2, range(0, 15), topology(2, 8)),
            (Places{"cores 0-7, NUMA domain 0", "cores 8-15, NUMA domain 1"}));
}

TEST(HomeMask, LetsRanksShareADomainAndARankHaveSeveral) {
  EXPECT_EQ(homes(4, range(0, 15), topology(2, 8)),
            (Places{"cores 0-7, NUMA domain 0", "cores 0-7, NUMA domain 0", "cores 8-15, NUMA domain 1",
                    "cores 8-15, NUMA domain 1"}));
  EXPECT_EQ(homes(2, range(0, 95), topology(4, 24)),
            (Places{"cores 0-47, NUMA domains 0-1", "cores 48-95, NUMA domains 2-3"}));
}

TEST(HomeMask, LeavesAllRanksOpenWhereOneWouldGetLessThanAnEvenShare) {
  const std::string all = "cores 0-15, NUMA domains 0-1";
  EXPECT_EQ(homes(3, range(0, 15), topology(2, 8)), Places(3, all));
  // A container may use 8 cores of one domain and 2 of the other.
  EXPECT_EQ(homes(2, range(0, 9), topology(2, 8)), Places(2, "cores 0-9, NUMA domains 0-1"));
}

TEST(HomeMask, StaysInsideTheCoresOfTheContainer) {
  EXPECT_EQ(homes(2, range(4, 11), topology(2, 8)),
            (Places{"cores 4-7, NUMA domain 0", "cores 8-11, NUMA domain 1"}));
  EXPECT_EQ(homes(2, range(4, 11), topology(3, 4)),
            (Places{"cores 4-7, NUMA domain 1", "cores 8-11, NUMA domain 2"}));
}

TEST(HomeMask, NeedsSeveralRanksAndSeveralDomainsWithCores) {
  EXPECT_EQ(homes(1, range(0, 15), topology(2, 8)), Places{"cores 0-15, NUMA domains 0-1"});
  EXPECT_EQ(homes(2, range(0, 7), topology(1, 8)), Places(2, "cores 0-7, NUMA domain 0"));
  EXPECT_EQ(homes(2, range(0, 7), {}), Places(2, "cores 0-7"));
  // The second domain has cores, but none that the container may use.
  EXPECT_EQ(homes(2, range(0, 7), topology(2, 8)), Places(2, "cores 0-7, NUMA domain 0"));
}

TEST(HomeMask, LeavesRanksAloneThatTheUserOrTheLauncherHasPlaced) {
  const auto domains = topology(4, 4);
  const CoreMask all = range(0, 15);
  const std::vector<CoreMask> launcher = {range(0, 7), range(8, 15)};
  EXPECT_EQ(home_mask(launcher, 1, all, domains), range(8, 15));
  const std::vector<CoreMask> user(2, range(0, 7));  // taskset -c 0-7 mpirun
  EXPECT_EQ(home_mask(user, 1, all, domains), range(0, 7));
}

TEST(NumaDomains, AreReadFromTheSystemWithoutThoseOfMemoryAlone) {
  const TempDir folder;
  const std::filesystem::path root = folder.path();
  const auto list = [&](const std::string& node, const std::string& cores) {
    std::filesystem::create_directories(root / node);
    std::ofstream(root / node / "cpulist") << cores << '\n';
  };
  list("node10", "64-65,70");
  list("node2", "0-3");
  list("node3", "");     // memory only
  list("node4", "5-3");  // none of these should exist
  list("node5", "0-1,x");
  list("nodes", "0");
  std::ofstream(root / "possible") << "0-10\n";
  const std::vector<NumaDomain> found = numa_domains(root);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(place_text(found[0].cores, found), "cores 0-3, NUMA domain 2");
  EXPECT_EQ(place_text(found[1].cores, found), "cores 64-65,70, NUMA domain 10");
  EXPECT_TRUE(numa_domains(root / "missing").empty());
}

TEST(KeepTo, LimitsTheThreadAndThoseItStarts) {
  std::thread([] {
    CoreMask one = affinity_mask();
    for (std::uint64_t& word : one) {
      while (word != 0 && count_cores(one) > 1) word &= word - 1;
    }
    keep_to(one);
    EXPECT_EQ(affinity_mask(), one);
    std::thread([&] { EXPECT_EQ(affinity_mask(), one); }).join();
    keep_to(CoreMask(one.size(), 0));  // the system refuses
    EXPECT_EQ(affinity_mask(), one);
  }).join();
}

TEST(PlaceLines, NameRanksOfAHostWithEqualPlacesTogether) {
  const std::vector<std::string> hosts = {"a", "a", "a", "b"};
  const std::vector<std::string> places = {"core 0", "core 0", "core 1", "core 1"};
  EXPECT_EQ(place_lines(hosts, places),
            (Places{"ranks 0-1 on a: core 0", "rank 2 on a: core 1", "rank 3 on b: core 1"}));
}

}  // namespace
}  // namespace cifar_mpi::comm
