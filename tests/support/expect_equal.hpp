#pragma once

#include <gtest/gtest.h>

#include <string>

#include "reference/reference.hpp"

namespace cifar_mpi::test {

/// Fails at the first values that differ and says where.
inline void expect_equal(const reference::Array& found, const reference::Array& wanted,
                         const std::string& what) {
  ASSERT_EQ(found.size(), wanted.size()) << what;
  std::size_t different = 0, first = 0;
  for (std::size_t i = found.size(); i-- > 0;) {
    if (found[i] == wanted[i]) continue;
    ++different;
    first = i;
  }
  EXPECT_EQ(different, 0u) << what << ": first at " << first << " of " << found.size() << ", found "
                           << found[first] << ", expected " << wanted[first];
}

}  // namespace cifar_mpi::test
