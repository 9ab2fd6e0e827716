#include <gtest/gtest.h>
#include <sched.h>

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/random.hpp"
#include "comm/collectives.hpp"
#include "support/mpi_world.hpp"

/// The order in which collectives add, bit for bit against one rank's sum of all inputs.
namespace cifar_mpi::comm {
namespace {

using test::test_world;

/// Values of very different size, so that the order affects bits.
float value(int rank, std::size_t i) {
  const Random4 bits = random4(static_cast<std::uint64_t>(rank), RandomPurpose::synthetic, i, 0);
  return (uniform01(bits[0]) - 0.5f) * std::exp2(static_cast<float>(bits[1] % 12));
}

/// The balanced tree over `leaves`, whose number is a power of two.
float balanced(std::span<const float> leaves) {
  if (leaves.size() == 1) return leaves[0];
  return balanced(leaves.first(leaves.size() / 2)) + balanced(leaves.subspan(leaves.size() / 2));
}

/// ((r0+r1)+(r2+r3))+…; if P is not a power of two, the first pairs are added beforehand.
float tree_sum(const std::vector<float>& by_rank) {
  const std::size_t pairs = by_rank.size() - std::bit_floor(by_rank.size());
  std::vector<float> leaves;
  for (std::size_t i = 0; i < pairs; ++i) leaves.push_back(by_rank[2 * i] + by_rank[2 * i + 1]);
  leaves.insert(leaves.end(), by_rank.begin() + static_cast<std::ptrdiff_t>(2 * pairs), by_rank.end());
  return balanced(leaves);
}

/// ((r0+r1)+r2)+…
float serial_sum(const std::vector<float>& by_rank) {
  float sum = by_rank[0];
  for (std::size_t r = 1; r < by_rank.size(); ++r) sum += by_rank[r];
  return sum;
}

void expect_order(std::string_view name, float (*expected)(const std::vector<float>&)) {
  constexpr std::size_t kCount = 5003;
  const auto collective = make_collective(name, test_world());
  const Buffer buffer = collective->allocate(kCount * sizeof(float));
  const std::span<float> data = buffer.span<float>();
  const engine::Task task = collective->all_reduce("sum", data, 0);
  for (std::size_t i = 0; i < kCount; ++i) data[i] = value(test_world().rank(), i);
  engine::Lane lane;
  task.start(lane);
  while (!task.poll()) sched_yield();
  std::size_t different = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    std::vector<float> by_rank;
    for (int r = 0; r < test_world().size(); ++r) by_rank.push_back(value(r, i));
    different += std::bit_cast<std::uint32_t>(data[i]) != std::bit_cast<std::uint32_t>(expected(by_rank));
  }
  EXPECT_EQ(different, 0u);
}

TEST(Doubling, AddsInABinaryTreeOverTheRanks) { expect_order("doubling", tree_sum); }

TEST(TableOfCollectives, SaysWhichAddInTheFixedTree) {
  for (const CollectiveInfo& info : collectives()) {
    if (info.fixed_tree) expect_order(info.name, tree_sum);
  }
  EXPECT_EQ(fixed_tree_collective(), "doubling");
}

TEST(TableOfCollectives, SaysWhichAreForOneNode) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs two nodes";
  Nodes apart;
  for (int rank = 0; rank < test_world().size(); ++rank) apart.of_rank.push_back(rank);
  for (const CollectiveInfo& info : collectives()) {
    const auto make = [&] { make_collective(info.name, test_world(), apart); };
    if (info.one_node) {
      EXPECT_THROW(make(), AgreedError) << info.name;
    } else {
      EXPECT_NO_THROW(make()) << info.name;
    }
  }
}

TEST(Window, AddsInRankOrder) { expect_order("window", serial_sum); }

TEST(AutoChoice, FollowsTheNodes) {
  EXPECT_EQ(choose_collective({{0}}).for_the_rest, "ring");
  EXPECT_EQ(choose_collective({{0, 0, 0, 0}}).for_the_rest, "window");
  EXPECT_EQ(choose_collective({{0, 0, 0, 0}}).short_bytes, 0u);
  for (const Nodes& nodes : {Nodes{{0, 0, 1, 1}}, Nodes{{0, 0, 0, 1}}, Nodes{{0, 1, 0}}}) {
    EXPECT_EQ(choose_collective(nodes).for_the_rest, "two-level");
    EXPECT_EQ(choose_collective(nodes).for_short, "doubling");
  }
  EXPECT_EQ(choose_collective({{0, 1, 2, 3}}).for_the_rest, "ring");
}

TEST(Nodes, CountTheirRanks) {
  const Nodes nodes{{0, 1, 0, 2, 0, 1}};
  EXPECT_EQ(nodes.count(), 3);
  EXPECT_EQ(nodes.ranks_on(0), 3);
  EXPECT_EQ(nodes.ranks_on(2), 1);
  EXPECT_EQ(nodes.fewest_ranks(), 1);
  EXPECT_EQ(nodes.most_ranks(), 3);
}

TEST(Nodes, AreThoseOfTheWorld) {
  const Nodes nodes = nodes_of(test_world());
  ASSERT_EQ(nodes.of_rank.size(), static_cast<std::size_t>(test_world().size()));
  EXPECT_EQ(nodes.of_rank[0], 0);
  const int mine = nodes.of_rank[static_cast<std::size_t>(test_world().rank())];
  EXPECT_EQ(nodes.ranks_on(mine), test_world().node_size());
}

}  // namespace
}  // namespace cifar_mpi::comm
