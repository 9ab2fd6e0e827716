#include "cifar_mpi/engine/arena.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <stdexcept>

namespace cifar_mpi::engine {
namespace {

std::size_t total_bytes(const Arena& arena) {
  std::size_t total = 0;
  for (const Bytes& region : arena.regions()) total += region.size;
  return total;
}

TEST(Arena, GivesDistinctAlignedMemory) {
  Arena arena(allocate_host);
  std::vector<Bytes> taken;
  for (const std::size_t size : {1, 64, 65, 1000, 0, 0}) {
    std::byte* const memory = arena.take(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0u);
    std::memset(memory, 1, size);
    taken.push_back({memory, size == 0 ? 1 : size});
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(taken[i].overlaps(taken[j])) << i << " and " << j;
  }
}

TEST(Arena, ReusesTheSmallestChunkThatFitsAfterRewind) {
  Arena arena(allocate_host);
  std::byte* const large = arena.take(4096);
  std::byte* const small = arena.take(128);
  std::byte* const middle = arena.take(1024);
  const std::size_t before = total_bytes(arena);
  arena.rewind();
  EXPECT_EQ(arena.take(1000), middle);
  EXPECT_EQ(arena.take(100), small);
  EXPECT_EQ(arena.take(100), large) << "the only one left";
  EXPECT_EQ(total_bytes(arena), before);
}

TEST(Arena, AllocatesMoreWhenNoFreeChunkFits) {
  Arena arena(allocate_host);
  std::byte* const first = arena.take(128);
  EXPECT_NE(arena.take(128), first) << "taken chunks are not handed out twice";
  arena.rewind();
  arena.take(4096);
  EXPECT_EQ(total_bytes(arena), 128u + 128u + 4096u);
  EXPECT_EQ(arena.regions().size(), 3u);
}

TEST(Arena, ListsEveryChunkAsARegion) {
  Arena arena(allocate_host);
  const std::set<const std::byte*> taken{arena.take(64), arena.take(640)};
  std::set<const std::byte*> listed;
  for (const Bytes& region : arena.regions()) listed.insert(region.begin);
  EXPECT_EQ(listed, taken);
}

TEST(Arena, CountsArraysInElements) {
  Arena arena(allocate_host);
  double* const values = arena.take_array<double>(100);
  ASSERT_NE(values, nullptr);
  EXPECT_EQ(total_bytes(arena), 832u);  // 800 rounded up to 64
}

TEST(Arena, RefusesAnAllocatorThatDoesNotAlign) {
  alignas(64) static std::byte memory[256];
  Arena arena([](std::size_t size) { return Buffer(memory + 8, size, nullptr); });
  EXPECT_THROW(arena.take(64), std::logic_error);
}

}  // namespace
}  // namespace cifar_mpi::engine
