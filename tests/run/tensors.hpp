#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "cifar_mpi/run/checkpoint.hpp"

namespace cifar_mpi::run {

/// The same bits in every tensor.
inline void expect_same_tensors(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].shape, b[i].shape);
    EXPECT_TRUE(std::ranges::equal(a[i].values, b[i].values, [](float x, float y) {
      return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
    })) << a[i].name;
  }
}

}  // namespace cifar_mpi::run
