#include <gtest/gtest.h>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/comm/server_update.hpp"
#include "support/errors.hpp"

namespace cifar_mpi::comm {
namespace {

/// The tutorial network, last layer first: weights and biases of softmax, local4, local3, conv2, conv1.
engine::ParamLayout tutorial() {
  engine::ParamLayout layout;
  for (const std::size_t floats :
       {1920u, 10u, 384u * 192u, 192u, 2304u * 384u, 384u, 25u * 64u * 64u, 64u, 25u * 3u * 64u, 64u}) {
    engine::append(layout, floats);
  }
  return layout;
}

std::size_t bytes_in(const ParamSpan& bucket) { return (bucket.end - bucket.begin) * sizeof(float); }

bool begins_a_parameter(const engine::ParamLayout& layout, std::size_t at) {
  for (const auto& entry : layout.entries) {
    if (entry.offset == at) return true;
  }
  return false;
}

TEST(BucketPlan, CoversEveryParameterOnceAndInOrder) {
  const engine::ParamLayout layout = tutorial();
  for (const std::size_t bytes : {1u, 64u, 100u, 50'000u, 300'000u, 3'000'000u, 100'000'000u}) {
    std::size_t at = 0;
    for (const ParamSpan& bucket : plan_buckets(layout, bytes)) {
      EXPECT_EQ(bucket.begin, at);
      EXPECT_GT(bucket.end, bucket.begin);
      EXPECT_TRUE(begins_a_parameter(layout, bucket.begin))
          << "a bucket of " << bytes << " bytes cuts a parameter";
      at = bucket.end;
    }
    EXPECT_EQ(at, layout.floats);
  }
}

TEST(BucketPlan, FillsEveryBucketButTheLastAndNoMoreThanNeeded) {
  const engine::ParamLayout layout = tutorial();
  for (const std::size_t bytes : {64u, 50'000u, 300'000u, 3'000'000u}) {
    const std::vector<ParamSpan> buckets = plan_buckets(layout, bytes);
    for (std::size_t i = 0; i + 1 < buckets.size(); ++i) {
      EXPECT_GE(bytes_in(buckets[i]), bytes);
      std::size_t last = 0;
      for (const auto& entry : layout.entries) {
        if (entry.offset < buckets[i].end) last = entry.offset;
      }
      EXPECT_LT((last - buckets[i].begin) * sizeof(float), bytes) << "full before its last parameter";
    }
  }
}

TEST(BucketPlan, HasOneParameterPerBucketWhenSmall) { EXPECT_EQ(plan_buckets(tutorial(), 1).size(), 10u); }

TEST(BucketPlan, HasOneBucketWhenHuge) {
  EXPECT_EQ(plan_buckets(tutorial(), std::size_t{1} << 40).size(), 1u);
}

TEST(BucketPlan, StartsWithTheLastLayer) {
  const ParamSpan first = plan_buckets(tutorial(), 1).front();
  EXPECT_EQ(first.begin, 0u);
  EXPECT_EQ(first.end, 1920u);
}

TEST(BucketPlan, OfNoParametersStillCarriesTheControlBlock) {
  const std::vector<ParamSpan> buckets = plan_buckets({}, 100);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].end, 0u);
}

TEST(BucketPlan, RefusesBucketsOfNothing) {
  expect_error(ErrorKind::usage, {}, [] { plan_buckets(tutorial(), 0); });
}

TEST(CutForServers, GivesEachAboutAsManyBytes) {
  engine::ParamLayout layout;
  for (const std::size_t floats : {16u, 100000u, 32u}) engine::append(layout, floats);
  for (const int servers : {1, 2, 3, 7}) {
    const std::vector<ParamSpan> spans = cut_for_servers(layout, servers);
    ASSERT_EQ(spans.size(), static_cast<std::size_t>(servers));
    std::size_t end = 0;
    for (const ParamSpan& span : spans) {
      EXPECT_EQ(span.begin, end);
      EXPECT_EQ(span.begin % 16, 0u) << "a cache line has one owner";
      EXPECT_NEAR(static_cast<double>(span.end - span.begin),
                  static_cast<double>(layout.trained_floats) / servers, 16.0);
      end = span.end;
    }
    EXPECT_EQ(end, layout.trained_floats);
  }
}

}  // namespace
}  // namespace cifar_mpi::comm
