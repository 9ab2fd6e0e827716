#include "cpu/pieces.hpp"

#include <gtest/gtest.h>

namespace cifar_mpi::cpu {
namespace {

using engine::Task;

TEST(Pieces, HaveAFewSamplesPerThreadWhereTheBatchAllowsIt) {
  EXPECT_EQ(samples_per_piece(128, 1), 16);
  EXPECT_EQ(samples_per_piece(128, 2), 32);
  EXPECT_EQ(samples_per_piece(100, 1), 10);
  EXPECT_EQ(samples_per_piece(16, 1), 16);
  EXPECT_EQ(samples_per_piece(127, 1), 127);
  EXPECT_EQ(samples_per_piece(1, 4), 1);
}

TEST(Pieces, HaveAFewRowsPerThreadWhereSamplesHaveSeveral) {
  EXPECT_EQ(samples_per_piece(128, 1, 4, 32), 8);
  EXPECT_EQ(samples_per_piece(128, 2, 4, 32), 16);
  EXPECT_EQ(samples_per_piece(128, 1, 25, 16), 1);
  EXPECT_EQ(samples_per_piece(128, 2, 25, 16), 2);
  EXPECT_EQ(samples_per_piece(127, 2, 25, 16), 1);
  EXPECT_EQ(samples_per_piece(127, 1, 3, 16), 127);
}

TEST(Pieces, BreatheAfterEveryPartAndDeclareWhatAllTouch) {
  struct Breaths : engine::Lane {
    void make_progress() override { ++count; }
    int count = 0;
  };
  const std::vector<float> source{1.0f, 2.0f, 3.0f};
  std::vector<float> sum(3), other(2);
  std::vector<Task> parts;
  for (int part = 0; part < 3; ++part)
    parts.push_back(add_parts_task(source.data(), 3, 1, sum.data(), sum.size()));
  parts.push_back(add_parts_task(source.data(), 3, 1, other.data(), other.size()));
  const Task task = in_one("all", std::move(parts));
  Breaths lane;
  task.start(lane);
  EXPECT_EQ(lane.count, 4);
  EXPECT_EQ(sum, (std::vector<float>{3.0f, 6.0f, 9.0f}));
  EXPECT_EQ(other, (std::vector<float>{1.0f, 2.0f}));
  const auto declares = [](const std::vector<engine::Bytes>& list, const std::vector<float>& values) {
    const engine::Bytes wanted = engine::bytes_of(values.data(), values.size());
    for (const engine::Bytes& bytes : list) {
      if (bytes.begin == wanted.begin && bytes.size == wanted.size) return true;
    }
    return false;
  };
  EXPECT_TRUE(declares(task.writes, sum));
  EXPECT_TRUE(declares(task.writes, other));
  EXPECT_TRUE(declares(task.reads, source));
}

}  // namespace
}  // namespace cifar_mpi::cpu
