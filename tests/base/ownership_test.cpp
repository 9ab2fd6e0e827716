#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/base/handle.hpp"

namespace cifar_mpi {
namespace {

std::vector<int>& destroyed() {
  static std::vector<int> values;
  return values;
}
void destroy(int value) { destroyed().push_back(value); }
using IntHandle = Handle<int, destroy, -1>;

class HandleOwnership : public testing::Test {
 protected:
  void SetUp() override { destroyed().clear(); }
};

TEST_F(HandleOwnership, DestroysExactlyOnceAtTheEndOfItsScope) {
  { const IntHandle handle(7); }
  EXPECT_EQ(destroyed(), std::vector<int>{7});
}

TEST_F(HandleOwnership, OwnsNothingAtFirstAndAfterItIsMovedFrom) {
  IntHandle empty;
  EXPECT_FALSE(empty);
  IntHandle from(0);  // zero is a resource here; only `Invalid` is not
  EXPECT_TRUE(from);
  const IntHandle to(std::move(from));
  EXPECT_FALSE(from);  // NOLINT(bugprone-use-after-move): that is what is tested
  EXPECT_EQ(to.get(), 0);
  EXPECT_TRUE(destroyed().empty());
}

TEST_F(HandleOwnership, DestroysWhatAnAssignmentReplaces) {
  IntHandle handle(1);
  handle = IntHandle(2);
  EXPECT_EQ(destroyed(), std::vector<int>{1});
  IntHandle& self = handle;
  handle = std::move(self);
  EXPECT_EQ(handle.get(), 2);
  handle.reset();
  handle.reset();
  EXPECT_EQ(destroyed(), (std::vector<int>{1, 2}));
}

TEST_F(HandleOwnership, ReleasesWithoutDestroying) {
  IntHandle handle(5);
  EXPECT_EQ(handle.release(), 5);
  EXPECT_FALSE(handle);
  EXPECT_TRUE(destroyed().empty());
}

TEST_F(HandleOwnership, NeverCopies) {
  EXPECT_FALSE(std::is_copy_constructible_v<IntHandle>);
  EXPECT_FALSE(std::is_copy_assignable_v<IntHandle>);
  EXPECT_FALSE(std::is_copy_constructible_v<Buffer>);
}

TEST(Buffer, ReleasesOnceHoweverOftenItMoves) {
  std::byte memory[16];
  int released = 0;
  {
    Buffer first(memory, sizeof memory, [&] { ++released; });
    Buffer second(std::move(first));
    EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is what is tested
    EXPECT_EQ(first.size(), 0u);
    Buffer third;
    third = std::move(second);
    EXPECT_EQ(third.data(), memory);
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

TEST(Buffer, ReleasesWhatAnAssignmentReplaces) {
  int released = 0;
  Buffer buffer(nullptr, 0, [&] { ++released; });
  buffer = allocate_host(8);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(buffer.size(), 8u);
}

TEST(Buffer, FromTheHostIsAlignedZeroAndOfTheAskedSize) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{100000}}) {
    const Buffer buffer = allocate_host(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_TRUE(
        std::all_of(buffer.data(), buffer.data() + size, [](std::byte b) { return b == std::byte{0}; }));
  }
  EXPECT_EQ(allocate_host(0).size(), 0u);
  EXPECT_EQ(allocate_host(20).span<float>().size(), 5u);
}

TEST(HugePages, AreZeroedAndAlignedWhereTheyFit) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{100}, kHugePage - 1, kHugePage, 3 * kHugePage + 5}) {
    const Buffer buffer = allocate_on_huge_pages(size);
    ASSERT_EQ(buffer.size(), size);
    const auto bytes = buffer.span<std::byte>();
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte value) { return value == std::byte{}; })) << size;
    const std::size_t alignment = size < kHugePage ? 64 : kHugePage;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment, 0u) << size;
  }
}

}  // namespace
}  // namespace cifar_mpi
