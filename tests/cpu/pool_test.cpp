#include "cpu/pool.hpp"

#include <gtest/gtest.h>

#include "cifar_mpi/base/error.hpp"
#include "cpu/conv_pool.hpp"

namespace cifar_mpi::cpu {
namespace {

using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

TEST(MaxPool, TakesTheWidestVectorsThatABlockFills) {
  for (const int block : {1, 3, 4, 7, 8, 15, 16, 64}) {
    const int lanes = lanes_of(pool_vectors(block));
    EXPECT_TRUE(lanes <= block || lanes == 4) << block;
    for (const VectorSet set : vector_sets_here())
      EXPECT_TRUE(lanes_of(set) > block || lanes_of(set) <= lanes);
  }
}

TEST(MaxPool, RefusesWindowsWhosePlacesDoNotFitAByte) {
  const Extent in{20, 20, 16};
  const Desc src = activations(2, in, Type::f32, Tag::nhwc);
  EXPECT_TRUE(plan_pool({"p", 16, 2}, 2, src, in).has_value());
  try {
    plan_pool({"p", 17, 2}, 2, src, in);
    FAIL() << "a window of 17 was planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("p has a window of 17"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
