#include "comm/shared_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <set>
#include <string>

#include "comm/node_memory.hpp"
#include "comm/shared_memory.hpp"
#include "comm/world_access.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::comm {
namespace {

using test::test_world;

/// Names in the folder of shared memory whose files another user could open or could have made.
std::set<std::string> names() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(shared_memory().place)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("cifar_mpi") || name.starts_with("osc"))
      found.insert(name);  // ours, or Open MPI's windows
  }
  return found;
}

constexpr std::size_t kPart = 8192;

TEST(SharedFile, IsSeenByAllRanksOfTheNode) {
  const World& world = test_world();
  const auto rank = static_cast<std::size_t>(world.node_rank()),
             ranks = static_cast<std::size_t>(world.node_size());
  const SharedFile file(WorldAccess::node(world), ranks * kPart, 0);
  ASSERT_NE(file.data(), nullptr);
  ASSERT_TRUE(file.occupy(rank * kPart, kPart));
  std::fill_n(file.data() + rank * kPart, kPart, std::byte(rank + 1));
  world.barrier();
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < kPart; i += 100) EXPECT_EQ(file.data()[r * kPart + i], std::byte(r + 1)) << r;
  }
  world.barrier();
}

TEST(SharedFile, HasNoNameAndNoOtherUser) {
  const World& world = test_world();
  world.barrier();
  const auto before = names();
  world.barrier();
  const NodeMemory memory(WorldAccess::node(world), 100'000);
  const SharedFile file(WorldAccess::node(world), kPart, kPart);
  world.barrier();
  EXPECT_EQ(names(), before);
  world.barrier();
  struct stat found {};
  ASSERT_EQ(fstat(file.descriptor(), &found), 0);
  EXPECT_EQ(found.st_nlink, 0u);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST(SharedFile, HoldsTheMemoryThatItHandsOut) {
  const World& world = test_world();
  const auto rank = static_cast<std::size_t>(world.node_rank()),
             ranks = static_cast<std::size_t>(world.node_size());
  constexpr std::size_t kLarge = 1 << 20;
  const SharedFile file(WorldAccess::node(world), ranks * kLarge, 0);
  world.barrier();
  ASSERT_TRUE(file.occupy(rank * kLarge, kLarge));
  world.barrier();
  // Memory that counts as taken cannot be lost to other files, so no write ends with SIGBUS.
  struct stat found {};
  ASSERT_EQ(fstat(file.descriptor(), &found), 0);
  EXPECT_GE(static_cast<std::size_t>(found.st_blocks) * 512, ranks * kLarge);
  EXPECT_FALSE(file.occupy(0, std::size_t{1} << 62));
}

}  // namespace
}  // namespace cifar_mpi::comm
