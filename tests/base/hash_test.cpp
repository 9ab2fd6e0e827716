#include "cifar_mpi/base/hash.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <vector>

namespace cifar_mpi {
namespace {

std::vector<std::byte> counting(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

std::uint64_t hash_of(std::string_view text) { return hash_bytes(std::as_bytes(std::span(text))); }

// Values of an independent implementation: checkpoints and their fingerprints contain such values, so another
// result for the same bytes makes all of them unreadable.
TEST(Hash, HasTheValuesThatCheckpointsHold) {
  EXPECT_EQ(hash_bytes({}), 0xecfa28b51ce73d95u);
  EXPECT_EQ(hash_of("a"), 0xcacb8ed5b764375cu);
  EXPECT_EQ(hash_of("cifar_mpi"), 0xbadd6aa43397c36du);
  EXPECT_EQ(hash_bytes(counting(32)), 0xb123f2c95ca7e529u);  // all four chains once
  EXPECT_EQ(hash_bytes(counting(100)), 0x0b865a2713d8cef1u);
  EXPECT_EQ(hash_pair(0, 0), 0x48218226ff3cd4bfu);
  EXPECT_EQ(hash_pair(1, 2), 0x081a5c1377856b75u);
  EXPECT_EQ(hash_pair(2, 1), 0xf2826f98653e9e58u);
  EXPECT_EQ(hash_pair(~std::uint64_t{0}, 12345), 0x36ec896d516fd8f7u);
}

TEST(Hash, ChangesWithEveryBitAndWithTheLength) {
  const std::vector<std::byte> bytes = counting(70);
  std::set<std::uint64_t> seen{hash_bytes(bytes)};
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::vector<std::byte> changed = bytes;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    seen.insert(hash_bytes(changed));
  }
  for (std::size_t size = 0; size < bytes.size(); ++size)
    seen.insert(hash_bytes(std::span(bytes).first(size)));
  EXPECT_EQ(seen.size(), 1 + 8 * bytes.size() + bytes.size());
  EXPECT_NE(hash_of(std::string_view("\0", 1)), hash_of(""));
}

}  // namespace
}  // namespace cifar_mpi
