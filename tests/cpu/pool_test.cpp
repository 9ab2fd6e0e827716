#include "cpu/pool.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/bf16.hpp"
#include "cpu/conv_pool.hpp"
#include "support/errors.hpp"

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
  expect_error(ErrorKind::usage, {"p has a window of 17"}, [&] { plan_pool({"p", 17, 2}, 2, src, in); });
}

/// Some gradients are −0.
template <class T>
void expect_the_same_bits_for_a_block(const Pool& pool) {
  const std::size_t values = pool.values_in(pool.in), pooled = pool.values_in(pool.out());
  std::vector<T> src(values), grad(pooled);
  for (std::size_t i = 0; i < values; ++i)
    src[i] = from_float<T>(static_cast<float>(random4(1, RandomPurpose::synthetic, i, 0)[0] % 100));
  for (std::size_t i = 0; i < pooled; ++i)
    grad[i] = from_float<T>(i % 3 == 0 ? -0.0f : static_cast<float>(i));
  std::vector<std::vector<T>> dst(2, std::vector<T>(pooled)),
      grad_src(2, std::vector<T>(values, from_float<T>(7.0f)));
  std::vector<std::vector<std::uint8_t>> choices(2, std::vector<std::uint8_t>(pooled));
  const auto bytes = [](auto& array) { return reinterpret_cast<std::byte*>(array.data()); };
  engine::Lane lane;
  plan_pool_forward("forward", pool, bytes(src), bytes(dst[0]), choices[0].data()).start(lane);
  plan_pool_backward("backward", pool, bytes(grad), choices[0].data(), bytes(grad_src[0])).start(lane);
  const BlockPool block = plan_block_pool(pool);
  block.forward(bytes(src), bytes(dst[1]), choices[1].data());
  block.backward(bytes(grad), choices[1].data(), bytes(grad_src[1]));
  EXPECT_EQ(choices[0], choices[1]);
  EXPECT_EQ(std::memcmp(dst[0].data(), dst[1].data(), pooled * sizeof(T)), 0);
  EXPECT_EQ(std::memcmp(grad_src[0].data(), grad_src[1].data(), values * sizeof(T)), 0);
}

/// Windows that overlap or not, with places beyond the last or between them, or partly outside of the image.
TEST(MaxPool, HasTheSameBitsForABlockOfAnImageAsForTheBatch) {
  for (const VectorSet set : vector_sets_here()) {
    for (const auto& [kernel, stride, valid] : {std::tuple{2, 2, true},
                                                {2, 2, false},
                                                {3, 3, true},
                                                {3, 3, false},
                                                {2, 3, true},
                                                {1, 2, true},
                                                {3, 2, false}}) {
      SCOPED_TRACE(
          concat(name_of(set), ", windows of ", kernel, ", stride ", stride, valid ? ", valid" : ""));
      const model::MaxPool layer{.name = "p", .kernel = kernel, .stride = stride, .valid = valid};
      Pool pool{.layer = layer, .in = {9, 8, 16}, .batch = 1, .blocks = 1, .block = 16, .set = set};
      expect_the_same_bits_for_a_block<float>(pool);
      pool.precision = engine::Precision::bf16;
      expect_the_same_bits_for_a_block<bf16>(pool);
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
