#include "comm/push_policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

namespace cifar_mpi::comm {
namespace {

using Workers = std::vector<int>;

std::uint64_t never(std::uint64_t) { return std::uint64_t{1} << 40; }
std::function<std::uint64_t(std::uint64_t)> every(std::uint64_t steps) {
  return [steps](std::uint64_t version) { return (version / steps + 1) * steps; };
}

/// "update 0 2, answer 0 2", "drop 1, answer 1", with "!" after an update that is a meeting; "-" if there is
/// no action.
std::string text(const PushOrder* order) {
  if (!order) return "-";
  const auto list = [](const Workers& workers) {
    std::string words;
    for (const int worker : workers) words += " " + std::to_string(worker);
    return words;
  };
  std::string words =
      order->taken.empty() ? "" : (order->updates ? "update" : "drop") + list(order->taken) + ", ";
  return words + "answer" + list(order->answered) + (order->meets ? " !" : "");
}

/// Lets pushes arrive and takes actions until there are none.
std::vector<std::string> after(PushPolicy& policy, const Workers& arrivals) {
  for (const int worker : arrivals) policy.arrived(worker);
  std::vector<std::string> done;
  for (const PushOrder* order = policy.next(); order != nullptr; order = policy.next()) {
    done.push_back(text(order));
    if (order->meets) policy.gather();
  }
  return done;
}

using Texts = std::vector<std::string>;

TEST(PushPolicy, WaitsForAllAndTakesThemInRankOrder) {
  PushPolicy policy(3, {}, 7, never);
  EXPECT_EQ(after(policy, {2, 0}), Texts{});
  EXPECT_EQ(after(policy, {1}), Texts{"update 0 1 2, answer 0 1 2"});
  EXPECT_EQ(after(policy, {1, 2, 0}), Texts{"update 0 1 2, answer 0 1 2"});
}

/// Two of three: worker 1 is late each time but once.
TEST(PushPolicy, TakesTheFirstOfTheCurrentVersionAndDropsTheLate) {
  PushPolicy policy(3, {.pushes = 2}, 0, never);
  EXPECT_EQ(after(policy, {2, 0}), Texts{"update 0 2, answer 0 2"});
  EXPECT_EQ(after(policy, {1}), Texts{"drop 1, answer 1"});
  EXPECT_EQ(after(policy, {1, 2}), Texts{"update 1 2, answer 1 2"});
  // Now 0 is late; the first two of the next three make an update, and the third is late only by its
  // position.
  EXPECT_EQ(after(policy, {0, 1}), Texts{"drop 0, answer 0"});
  EXPECT_EQ(after(policy, {0, 2}), (Texts{"update 0 1, answer 0 1", "drop 2, answer 2"}));
}

TEST(PushPolicy, LetsAllWorkersHaveAVersionToMeetAt) {
  PushPolicy policy(3, {.pushes = 2}, 0, every(2));
  EXPECT_EQ(after(policy, {0, 1}), Texts{"update 0 1, answer 0 1"});
  EXPECT_EQ(after(policy, {0, 1}), Texts{"update 0 1, answer 0 1 !"});
  EXPECT_FALSE(policy.gathered());
  EXPECT_EQ(after(policy, {0, 1}), Texts{}) << "nothing is made before 2 has the version, too";
  EXPECT_EQ(after(policy, {2}), (Texts{"drop 2, answer 2", "update 0 1, answer 0 1"}));
}

TEST(PushPolicy, MeetsWhenItIsAskedTo) {
  PushPolicy policy(2, {.pushes = 1}, 0, never);
  EXPECT_EQ(after(policy, {0}), Texts{"update 0, answer 0"});
  policy.ask_to_meet();
  EXPECT_EQ(after(policy, {0}), Texts{"update 0, answer 0 !"});
  EXPECT_EQ(after(policy, {1}), Texts{"drop 1, answer 1"});
  EXPECT_TRUE(policy.gathered());
}

TEST(PushPolicy, TakesEveryAsynchronousPushAndTellsItsStaleness) {
  PushPolicy policy(3, {.asynchronous = true}, 0, never);
  const auto staleness_of = [&](int worker) {
    policy.arrived(worker);
    const PushOrder* const order = policy.next();
    EXPECT_TRUE(order != nullptr && order->updates && order->taken == Workers{worker} &&
                order->answered == Workers{worker});
    return order != nullptr ? order->staleness : 99;
  };
  // 0 pushes three times while 1 computes once; 2 misses all of these.
  EXPECT_EQ(staleness_of(0), 0u);
  EXPECT_EQ(staleness_of(0), 0u);
  EXPECT_EQ(staleness_of(0), 0u);
  EXPECT_EQ(staleness_of(1), 3u);
  EXPECT_EQ(staleness_of(2), 4u);
  EXPECT_EQ(staleness_of(1), 1u);
  EXPECT_EQ(staleness_of(0), 3u);
}

TEST(PushPolicy, HoldsAWorkerThatIsTooFarAhead) {
  PushPolicy policy(2, {.asynchronous = true, .most_drift = 1}, 0, never);
  EXPECT_EQ(after(policy, {0}), Texts{"update 0, answer 0"});
  EXPECT_EQ(after(policy, {0}), Texts{"update 0, answer"}) << "two more than 1 has pushed";
  EXPECT_EQ(after(policy, {1}), Texts{"update 1, answer 0 1"});
  // In step: batch k + 1 begins when all pushes of k are applied.
  PushPolicy rounds(3, {.asynchronous = true, .most_drift = 0}, 0, never);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(after(rounds, {1, 0}), (Texts{"update 1, answer", "update 0, answer"}));
    EXPECT_EQ(after(rounds, {2}), Texts{"update 2, answer 0 1 2"});
  }
}

/// Within the unbounded drift, a worker need not wait for another to arrive.
TEST(PushPolicy, BoundsTheDriftOfARunThatGoesOnWithoutWaitingForWhatWasBefore) {
  PushPolicy policy(2, {.asynchronous = true, .most_drift = 1}, 0, never, {700, 4});
  EXPECT_EQ(after(policy, {0}), Texts{"update 0, answer"});
  EXPECT_EQ(after(policy, {1}), Texts{"update 1, answer 1"});
  EXPECT_EQ(after(policy, {1}), Texts{"update 1, answer 0 1"});
  PushPolicy wide(2, {.asynchronous = true, .most_drift = ~std::uint64_t{0}}, 0, never, {700, 4});
  EXPECT_EQ(after(wide, {0}), Texts{"update 0, answer 0"}) << "a bound that is never reached";
}

TEST(PushPolicy, DropsNothingOfAsynchronousWorkersBeforeTheyMeet) {
  PushPolicy policy(3, {.asynchronous = true}, 0, every(5));
  EXPECT_EQ(after(policy, {0, 1}), (Texts{"update 0, answer 0", "update 1, answer 1"}));
  // Version 2, three under way: exactly those that make version 5.
  EXPECT_EQ(after(policy, {0, 0 + 1}), (Texts{"update 0, answer", "update 1, answer"}));
  EXPECT_EQ(after(policy, {2}), Texts{"update 2, answer 0 1 2 !"});
  EXPECT_TRUE(policy.gathered());
}

/// Three are under way, and two more versions fit before the meeting.
TEST(PushPolicy, DropsAsynchronouslyWhatIsLeftOverWhereMeetingsAreClose) {
  PushPolicy policy(3, {.asynchronous = true}, 0, every(2), {7, 7, 7});
  EXPECT_EQ(after(policy, {1, 2}), (Texts{"update 1, answer", "update 2, answer 1 2 !"}));
  EXPECT_FALSE(policy.gathered());
  EXPECT_EQ(after(policy, {2, 0}), (Texts{"drop 0, answer 0", "update 2, answer"}));
}

/// After a meeting only each worker's number of pushes matters.
TEST(PushPolicy, GoesOnFromAMeetingAsItWouldHaveWithoutAnEnd) {
  const Aggregation aggregation{.asynchronous = true, .most_drift = 1, .arrival_order = 5};
  const auto run = [](PushPolicy& policy, std::vector<std::uint64_t>& pushed, int meetings) {
    Texts done;
    Workers computing{0, 1, 2};
    while (meetings > 0) {
      for (const int worker : std::exchange(computing, {})) policy.arrived(worker);
      const PushOrder* const order = policy.next();
      if (order == nullptr) {
        ADD_FAILURE() << "everybody waits";
        break;
      }
      done.push_back(text(order));
      for (const int worker : order->taken) ++pushed[static_cast<std::size_t>(worker)];
      computing = order->answered;
      if (!order->meets) continue;
      policy.gather();
      --meetings;
    }
    EXPECT_TRUE(policy.gathered());
    return done;
  };
  // The second began without the bound, so one worker is far ahead.
  for (const std::vector<std::uint64_t>& begun : {std::vector<std::uint64_t>{0, 0, 0}, {2, 900, 4}}) {
    std::vector<std::uint64_t> pushed = begun, again = begun;
    PushPolicy whole(3, aggregation, 0, every(30), begun), first(3, aggregation, 0, every(30), begun);
    const Texts both = run(whole, pushed, 3);
    Texts parts = run(first, again, 1);
    for (const std::uint64_t version : {30, 60}) {
      PushPolicy next(3, aggregation, version, every(30), again);
      const Texts rest = run(next, again, 1);
      parts.insert(parts.end(), rest.begin(), rest.end());
    }
    EXPECT_EQ(parts, both);
    EXPECT_EQ(again, pushed);
  }
}

TEST(PushPolicy, MeetsAsynchronouslyWhenItIsAskedToAndDropsNothing) {
  PushPolicy policy(3, {.asynchronous = true}, 0, never);
  EXPECT_EQ(after(policy, {0}), Texts{"update 0, answer 0"});
  policy.ask_to_meet();
  EXPECT_EQ(after(policy, {2, 1}), (Texts{"update 2, answer", "update 1, answer"}));
  EXPECT_EQ(after(policy, {0}), Texts{"update 0, answer 0 1 2 !"});
}

TEST(PushPolicy, AnswersAllWhereAnUpdateDidNotApply) {
  PushPolicy policy(3, {.asynchronous = true, .most_drift = 0}, 0, never);
  EXPECT_EQ(after(policy, {1}), Texts{"update 1, answer"});
  policy.gather();
  EXPECT_EQ(text(policy.next()), "answer 1");
  EXPECT_EQ(after(policy, {0}), Texts{"drop 0, answer 0"});
  EXPECT_FALSE(policy.gathered());
  EXPECT_EQ(after(policy, {2}), Texts{"drop 2, answer 2"});
  EXPECT_TRUE(policy.gathered());
}

/// In any order of arrival, every push of a worker leaves once, in the order of pushing, and is answered
/// once.
struct Counts {
  std::uint64_t versions = 0, dropped = 0, meetings = 0;
  std::vector<Workers> applied;
};

Counts simulate(int workers, const Aggregation& aggregation, std::uint64_t meet_every, std::uint64_t versions,
                std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PushPolicy policy(workers, aggregation, 0, every(meet_every));
  Counts counts;
  std::vector<std::uint64_t> pushed(static_cast<std::size_t>(workers));
  std::vector<int> pushes_here(static_cast<std::size_t>(workers)), computing(pushes_here.size(), 1);
  while (counts.versions < versions) {
    Workers ready;
    for (int w = 0; w < workers; ++w) {
      if (computing[static_cast<std::size_t>(w)] == 1) ready.push_back(w);
    }
    if (ready.empty()) {
      ADD_FAILURE() << "everybody waits, after " << counts.versions << " versions";
      break;
    }
    const int comes = ready[random() % ready.size()];
    computing[static_cast<std::size_t>(comes)] = 0;
    ++pushes_here[static_cast<std::size_t>(comes)];
    policy.arrived(comes);
    while (const PushOrder* const order = policy.next()) {
      for (const int w : order->taken) {
        EXPECT_EQ(pushes_here[static_cast<std::size_t>(w)]--, 1);
        ++pushed[static_cast<std::size_t>(w)];
      }
      const std::uint64_t least = *std::min_element(pushed.begin(), pushed.end());
      for (const int w : order->answered) {
        EXPECT_EQ(computing[static_cast<std::size_t>(w)]++, 0);
        if (!aggregation.most_drift) continue;
        EXPECT_LE(pushed[static_cast<std::size_t>(w)] - least,
                  *aggregation.most_drift + (order->meets ? 1 : 0));
      }
      counts.dropped += order->updates ? 0 : order->taken.size();
      if (order->updates) counts.applied.push_back(order->taken), ++counts.versions;
      if (!order->meets) continue;
      policy.gather();
      ++counts.meetings;
      EXPECT_TRUE(!aggregation.asynchronous || policy.gathered());
    }
  }
  return counts;
}

TEST(PushPolicy, LosesNothingAndTakesNothingTwiceWhateverTheOrder) {
  for (int workers = 2; workers <= 8; ++workers) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(testing::Message() << workers << " workers, seed " << seed);
      for (int pushes = 1; pushes <= workers; ++pushes) {
        const Counts counts = simulate(workers, {.pushes = pushes}, 20, 200, seed);
        EXPECT_GE(counts.meetings, 9u);
        for (const Workers& winners : counts.applied) EXPECT_EQ(static_cast<int>(winners.size()), pushes);
        EXPECT_TRUE(pushes < workers || counts.dropped == 0);
      }
      for (const std::optional<std::uint64_t> drift : {std::optional<std::uint64_t>(), {0}, {2}}) {
        const Counts counts = simulate(workers, {.asynchronous = true, .most_drift = drift}, 20, 200, seed);
        EXPECT_EQ(counts.dropped, 0u);
        EXPECT_GE(counts.meetings, 9u);
      }
    }
  }
}

TEST(PushPolicy, AppliesInADrawnOrderWhoeverComesFirst) {
  const auto order_of = [](std::uint64_t order, std::uint64_t arrivals) {
    return simulate(4, {.asynchronous = true, .arrival_order = order}, 50, 300, arrivals).applied;
  };
  EXPECT_EQ(order_of(1, 1), order_of(1, 2));
  EXPECT_NE(order_of(1, 1), order_of(2, 1));
}

}  // namespace
}  // namespace cifar_mpi::comm
