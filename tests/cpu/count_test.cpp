#include "cpu/count.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cpu/bf16.hpp"
#include "cpu/planning.hpp"
#include "cpu/task_runs.hpp"
#include "support/naive_counts.hpp"

namespace cifar_mpi::cpu {
namespace {

using Tag = dnnl::memory::format_tag;

using engine::ValueCounts;
using engine::ValueRun;
using test::expect_counts;
using Type = dnnl::memory::data_type;

ValueCounts counted(const std::vector<float>& values, const std::vector<ValueRun>& runs) {
  ValueCounts counts;
  engine::Lane lane;
  plan_count("count", {{reinterpret_cast<const std::byte*>(values.data()), Type::f32, runs, &counts}})
      .start(lane);
  return counts;
}

TEST(Count, FindsWhatANaiveLoopFinds) {
  for (const std::vector<float>& values : test::value_samples()) {
    expect_counts(counted(values, {{0, values.size()}}), values);
  }
}

TEST(Count, TakesBf16ForTheNumbersThatTheyAre) {
  for (const std::vector<float>& values : test::value_samples()) {
    std::vector<bf16> narrow;
    std::vector<float> wide;
    for (const float value : values) {
      narrow.push_back(to_bf16(value));
      wide.push_back(to_float(narrow.back()));
    }
    ValueCounts counts;
    engine::Lane lane;
    plan_count(
        "count",
        {{reinterpret_cast<const std::byte*>(narrow.data()), Type::bf16, {{0, narrow.size()}}, &counts}})
        .start(lane);
    expect_counts(counts, wide);
  }
}

/// Runs that begin and end anywhere, also across chunks; values between them would show.
TEST(Count, LeavesOutWhatIsInNoRun) {
  constexpr float kPoison = -1e30f;
  const std::vector<float> values = test::value_samples().back();
  std::vector<float> memory;
  std::vector<ValueRun> runs;
  for (std::size_t i = 0, length = 1; i < values.size(); i += length, length = length * 7 % 5003) {
    memory.insert(memory.end(), 1 + length % 3, kPoison);
    const std::size_t count = std::min(length, values.size() - i);
    runs.push_back({memory.size(), count});
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(i);
    memory.insert(memory.end(), first, first + static_cast<std::ptrdiff_t>(count));
  }
  memory.push_back(kPoison);
  expect_counts(counted(memory, runs), values);
}

TEST(Count, DependsNotOnTheNumberOfThreads) {
  const std::vector<float> values = test::value_samples().back();
  for (const int n : {1, 2, 3, 5}) {
    const testing::Threads with(n);
    expect_counts(counted(values, {{0, values.size()}}), values);
  }
}

/// 20 channels in blocks of 16 and 8; of all formats that are used, and of both types.
TEST(Count, FindsTheValuesAmongThePaddingOfBlockedFormats) {
  constexpr int kBatch = 3;
  const Extent extent{5, 7, 20};
  const auto count = static_cast<std::size_t>(kBatch * extent.count());
  std::vector<float> logical(count);
  for (std::size_t i = 0; i < count; ++i)
    logical[i] = to_float(to_bf16(1.0f + 0.01f * static_cast<float>(i)));
  const Dnnl dnnl;
  for (const Tag tag : {Tag::nchw, Tag::nhwc, Tag::nChw8c, Tag::nChw16c}) {
    for (const Type type : {Type::f32, Type::bf16}) {
      const Desc desc = activations(kBatch, extent, type, tag);
      std::vector<std::byte> memory(desc.get_size());
      reorder_now(dnnl, activations(kBatch, extent, Type::f32, Tag::nchw), logical.data(), desc,
                  memory.data());
      ValueCounts counts;
      engine::Lane lane;
      plan_count("count", {{memory.data(), type, values_of(dnnl, desc, kBatch, extent), &counts}})
          .start(lane);
      expect_counts(counts, logical);
      EXPECT_EQ(counts.zeros, 0u) << "padding";
    }
  }
}

TEST(Count, SaysWhatItReadsAndWrites) {
  std::vector<float> values(100);
  ValueCounts counts;
  const engine::Task task = plan_count(
      "count", {{reinterpret_cast<const std::byte*>(values.data()), Type::f32, {{3, 2}, {50, 10}}, &counts}});
  ASSERT_EQ(task.reads.size(), 1u);
  EXPECT_EQ(task.reads[0].begin, reinterpret_cast<const std::byte*>(values.data() + 3));
  EXPECT_EQ(task.reads[0].size, 57 * sizeof(float));
  ASSERT_EQ(task.writes.size(), 1u);
  EXPECT_EQ(task.writes[0].begin, reinterpret_cast<const std::byte*>(&counts));
}

TEST(KeepImages, TurnsTheFirstImagesToRowsOfPixels) {
  const Extent extent{2, 3, 2};
  std::vector<float> x;
  for (int i = 0; i < 3 * extent.count(); ++i) x.push_back(static_cast<float>(i));
  std::vector<bf16> narrow;
  for (const float value : x) narrow.push_back(to_bf16(value));
  for (const auto precision : {engine::Precision::fp32, engine::Precision::bf16}) {
    const auto* const from = precision == engine::Precision::bf16
                                 ? reinterpret_cast<const std::byte*>(narrow.data())
                                 : reinterpret_cast<const std::byte*>(x.data());
    std::vector<float> kept(static_cast<std::size_t>(2 * extent.count()), -1.0f);
    engine::Lane lane;
    plan_keep_images(from, precision, extent, 2, kept.data()).start(lane);
    for (int n = 0; n < 2; ++n) {
      for (int p = 0; p < 6; ++p) {
        for (int c = 0; c < 2; ++c)
          EXPECT_EQ(kept[static_cast<std::size_t>(n * 12 + p * 2 + c)],
                    static_cast<float>(n * 12 + c * 6 + p));
      }
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
