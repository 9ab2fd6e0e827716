#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "run/made_checkpoint.hpp"

namespace cifar_mpi::run {
namespace {

/// The hash that version 2 gave this content: those files stay readable.
constexpr const char* kVersion2Hash = "2211e0d9fdff7e07";

TEST(ContentHash, OfPlainDescentIsThatOfVersion2) {
  EXPECT_EQ(fmt::format("{:016x}", content_hash(make_checkpoint())), kVersion2Hash);
}

TEST(ContentHash, IsThatOfTheComparedGroupsAlone) {
  const Checkpoint checkpoint = make_checkpoint();
  Checkpoint other = checkpoint;
  other.provenance = {};
  std::reverse(other.state[optim::StateRole::weights].begin(), other.state[optim::StateRole::weights].end());
  EXPECT_EQ(content_hash(other), content_hash(checkpoint));
}

TEST(ContentHash, DependsOnEveryFactOfThem) {
  const std::uint64_t original = content_hash(make_checkpoint());
  const std::vector<std::pair<const char*, std::function<void(Checkpoint&)>>> changes{
      {"a weight's last bit",
       [](Checkpoint& c) {
         c.state[optim::StateRole::weights][3].values[1] =
             std::nextafter(c.state[optim::StateRole::weights][3].values[1], 9e9f);
       }},
      {"the sign of a zero",
       [](Checkpoint& c) { c.state[optim::StateRole::weights].back().values.back() = 0.0f; }},
      {"an average", [](Checkpoint& c) { c.state[optim::StateRole::average][5].values[0] += 1.0f; }},
      {"model and averages exchanged",
       [](Checkpoint& c) {
         std::swap(c.state[optim::StateRole::weights], c.state[optim::StateRole::average]);
       }},
      {"two tensors' values exchanged",
       [](Checkpoint& c) {
         std::swap(c.state[optim::StateRole::weights][2].values,
                   c.state[optim::StateRole::weights][4].values);
       }},
      {"a name", [](Checkpoint& c) { c.state[optim::StateRole::weights][2].name += "x"; }},
      {"a tensor less", [](Checkpoint& c) { c.state[optim::StateRole::average].pop_back(); }},
      {"dims", [](Checkpoint& c) { c.state[optim::StateRole::weights][2].dims += "x"; }},
      {"optimizer", [](Checkpoint& c) { c = with_optimizer({.kind = optim::OptimizerKind::momentum}); }},
      {"step", [](Checkpoint& c) { ++c.progress.step; }},
      {"epoch", [](Checkpoint& c) { c.progress.epoch += 1e-9; }},
      {"samples seen", [](Checkpoint& c) { ++c.progress.samples_seen; }},
      {"seed", [](Checkpoint& c) { --c.progress.seed; }},
      {"identity", [](Checkpoint& c) { c.progress.identity[0].second = "other"; }},
      {"resolved", [](Checkpoint& c) { c.progress.resolved[0].second = "other"; }},
      {"an item that moved", [](Checkpoint& c) {
         c.progress.resolved.insert(c.progress.resolved.begin(), c.progress.identity.back());
         c.progress.identity.pop_back();
       }}};
  for (const auto& [what, change] : changes) {
    Checkpoint other = make_checkpoint();
    change(other);
    EXPECT_NE(content_hash(other), original) << what;
  }
}

}  // namespace
}  // namespace cifar_mpi::run
