#include "cifar_mpi/comm/server_update.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>

#include "comm/tiny_server_step.hpp"
#include "comm/world_access.hpp"
#include "support/allocation_count.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::comm {
namespace {

class ServerUpdate : public testing::Test {
 protected:
  void SetUp() override {
    if (test_world().size() == 1) GTEST_SKIP() << "needs a worker and a server";
  }
  static std::vector<int> numbers_of_servers() {
    std::vector<int> numbers;
    for (int servers = 1; servers < test_world().size() && servers <= 3; ++servers)
      numbers.push_back(servers);
    return numbers;
  }
};

TEST_F(ServerUpdate, AddsInRankOrderWhateverTheServersRunnerAndOverlap) {
  constexpr int kSteps = 4;
  for (const int servers : numbers_of_servers()) {
    for (const RunnerKind kind : {RunnerKind::lanes, RunnerKind::serial, RunnerKind::audit}) {
      for (const bool overlap : {true, false}) {
        SCOPED_TRACE(testing::Message()
                     << servers << " servers, runner " << static_cast<int>(kind) << ", overlap " << overlap);
        TinyServerStep step(servers, overlap);
        const auto runner = step.runner(kind);
        for (int i = 0; i < kSteps; ++i) runner->replay();
        const int workers = test_world().size() - servers;
        const std::vector<float> expected = expected_params(step.params.size(), workers, kSteps);
        if (!step.serves()) {
          EXPECT_EQ(step.params, expected);
        }
        // A server updates its own span and keeps the initial values of the others.
        const ParamSpan span =
            step.serves() ? step.update().spans()[static_cast<std::size_t>(test_world().rank() - workers)]
                          : ParamSpan{};
        for (std::size_t i = span.begin; i < span.end; ++i) ASSERT_EQ(step.params[i], expected[i]) << i;
        EXPECT_EQ(step.totals, std::vector<float>(kSteps, static_cast<float>(workers * (workers + 1) / 2)));
        EXPECT_EQ(step.decay, std::vector<double>(kSteps, static_cast<double>(step.params.size())));
      }
    }
  }
}

/// All workers but one make an update: nothing is lost, nothing is applied twice, and at a meeting all have
/// the same parameters.
void count_pushes(int servers, const Aggregation& aggregation) {
  constexpr std::uint64_t kSteps = 40;
  const int workers = test_world().size() - servers;
  SCOPED_TRACE(testing::Message() << servers << " servers, " << workers << " workers, asynchronous "
                                  << aggregation.asynchronous);
  TinyServerStep step(servers, true, aggregation);
  step.meet_every = 10;
  const auto runner = step.runner();
  std::mt19937 random(static_cast<unsigned>(test_world().rank()));
  std::uint64_t computed = 0;
  while (step.step < kSteps) {
    if (!step.serves()) std::this_thread::sleep_for(std::chrono::microseconds(random() % 600));
    runner->replay();
    computed += step.serves() ? 0 : 1;
    if (step.step % 10 == 0) test_world().barrier();  // all reach each meeting without waiting there
  }
  EXPECT_EQ(step.step, kSteps);
  step.update().complete({}, {});
  const PushCounts counts = step.update().push_counts().value();
  const std::vector<double> by_worker = test_world().gather(static_cast<double>(computed));
  double applied = 0.0, loss = 0.0;
  for (int w = 0; w < workers; ++w) {
    const auto i = static_cast<std::size_t>(w);
    applied += static_cast<double>(counts.applied[i]);
    loss += static_cast<double>(counts.applied[i]) * (w + 1);
    EXPECT_EQ(static_cast<double>(counts.applied[i] + counts.dropped[i]), by_worker[i]) << "worker " << w;
  }
  EXPECT_EQ(applied, static_cast<double>(kSteps) * aggregation.of(workers));
  if (step.serves()) {
    EXPECT_EQ(std::accumulate(step.totals.begin(), step.totals.end(), 0.0), loss);
    EXPECT_EQ(step.totals.size(), kSteps);
  }
  double sum = std::accumulate(step.params.begin(), step.params.end(), 0.0), of_rank_zero = sum;
  test_world().broadcast(std::as_writable_bytes(std::span(&of_rank_zero, 1)));
  EXPECT_TRUE(step.serves() || sum == of_rank_zero);
}

TEST_F(ServerUpdate, LosesNoPushAndAppliesNoneTwiceWhateverTheDelays) {
  for (const int servers : numbers_of_servers()) {
    const int workers = test_world().size() - servers;
    if (workers < 2) continue;
    count_pushes(servers, {.pushes = workers - 1});
    count_pushes(servers, {.asynchronous = true});
    count_pushes(servers, {.asynchronous = true, .most_drift = 1});
  }
}

/// Five steps without the last worker; one without the first, in which only the first of the last worker's
/// two pushes is dropped; one without the last again. Computed by hand, in rank order.
TEST_F(ServerUpdate, AddsTheFirstPushesOfTheCurrentWeightsInRankOrder) {
  const int ranks = test_world().size();
  for (const int servers : numbers_of_servers()) {
    const int workers = ranks - servers, rank = test_world().rank();
    if (workers < 2) continue;
    SCOPED_TRACE(testing::Message() << servers << " servers, " << workers << " workers");
    TinyServerStep step(servers, true, {.pushes = workers - 1});
    step.meet_every = 7;
    const auto runner = step.runner();
    const Communicator of_workers = WorldAccess::split(test_world(), step.serves() ? -1 : 0);
    const bool first = rank == 0, last = rank == workers - 1;
    const auto stage = [&](bool computes, int replays) {
      for (int i = 0; computes && i < replays; ++i) runner->replay();
      MPI_Barrier(of_workers.get());
    };
    if (step.serves()) {
      for (int i = 0; i < 7; ++i) runner->replay();
    } else {
      stage(!last, 5);
      stage(last, 1);  // dropped
      EXPECT_EQ(step.step, 5u);
      stage(!first, 1);
      stage(first, 1);  // dropped
      EXPECT_EQ(step.step, 6u);
      stage(!last, 1);
      stage(last, 1);  // dropped
      EXPECT_EQ(step.step, 7u);
    }
    std::vector<std::pair<int, int>> winners(7, {0, workers - 1});
    winners[5] = {1, workers};
    const std::vector<float> expected = expected_params(step.params.size(), winners);
    EXPECT_TRUE(step.serves() || step.params == expected);
    step.update().complete({}, {});
    const PushCounts counts = step.update().push_counts().value();
    std::vector<std::uint64_t> applied(static_cast<std::size_t>(workers), 7), dropped(applied.size());
    applied.front() -= 1, dropped.front() += 1;
    applied.back() -= 6, dropped.back() += 2;
    EXPECT_EQ(counts.applied, applied);
    EXPECT_EQ(counts.dropped, dropped);
    EXPECT_EQ(counts.server_bytes.size(), static_cast<std::size_t>(servers));
    EXPECT_EQ(std::accumulate(counts.server_bytes.begin(), counts.server_bytes.end(), 0u),
              std::accumulate(counts.worker_bytes.begin(), counts.worker_bytes.end(), 0u));
    EXPECT_GT(counts.worker_bytes.front(), 2 * 7 * step.params.size() * sizeof(float));
  }
}

/// The order of pushes is drawn, so the parameters are the same for any delays.
TEST_F(ServerUpdate, AppliesInTheDrawnOrderWhateverTheDelays) {
  if (test_world().size() < 3) GTEST_SKIP() << "needs two workers and a server";
  std::vector<std::vector<float>> found;
  for (const unsigned seed : {1u, 2u}) {
    TinyServerStep step(1, true, {.asynchronous = true, .most_drift = 2, .arrival_order = 9});
    step.meet_every = 25;
    const auto runner = step.runner();
    std::mt19937 random(seed * 100 + static_cast<unsigned>(test_world().rank()));
    while (step.step < 50) {
      if (!step.serves()) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      runner->replay();
    }
    found.push_back(step.params);
  }
  EXPECT_EQ(found[0], found[1]);
}

/// The last worker pushed and does not take its answer, like one that is stopped or has a slow link. The
/// answer is too long for MPI's eager protocol, so it leaves when that worker continues: after ten steps of
/// the others.
TEST_F(ServerUpdate, IsNotHeldUpByAWorkerThatDoesNotTakeItsAnswer) {
  const int workers = test_world().size() - 1;
  if (workers < 2) GTEST_SKIP() << "needs two workers and a server";
  std::unique_ptr<TempDir> folder;
  std::string path;
  if (test_world().rank() == 0) {
    folder = std::make_unique<TempDir>();
    path = folder->path();
  }
  test_world().broadcast(path);
  for (const bool asynchronous : {false, true}) {
    const std::string others_went_on = path + (asynchronous ? "/async" : "/first_ones");
    TinyServerStep step(1, true, {.pushes = workers - 1, .asynchronous = asynchronous});
    step.meet_every = 20;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    bool waited_in_vain = false;
    const bool pauses = test_world().rank() == workers - 1;
    if (pauses) {
      step.pause = [&] {
        waited_in_vain = waited_in_vain || std::chrono::steady_clock::now() > limit;
        return waited_in_vain || std::filesystem::exists(others_went_on);
      };
    }
    const auto runner = step.runner();
    std::vector<double> sum_at(step.meet_every + 1,
                               -1.0);  // of the parameters, by version; not every worker gets all
    while (step.step < step.meet_every) {
      runner->replay();
      sum_at.at(step.step) = std::accumulate(step.params.begin(), step.params.end(), 0.0);
      if (!pauses && step.step >= 10) write_file(others_went_on, "");
    }
    EXPECT_FALSE(waited_in_vain) << "asynchronous " << asynchronous;
    for (std::size_t version = 0; version < sum_at.size(); ++version) {
      const std::vector<double> sums = test_world().gather(sum_at[version]);
      for (const double sum : sums)
        EXPECT_TRUE(sum == -1.0 || sum == sums.back()) << "the weights are not of version " << version;
    }
  }
  test_world().barrier();
}

TEST_F(ServerUpdate, TellsAllRanksWhatOneServerIsAsked) {
  for (const int servers : numbers_of_servers()) {
    TinyServerStep step(servers);
    const auto runner = step.runner();
    runner->replay();
    if (test_world().rank() == test_world().size() - 1) step.requests = engine::kStopRequest;
    runner->replay();
    EXPECT_EQ(step.stops, (std::vector<float>{0.0f, 1.0f})) << servers << " servers";
  }
}

TEST_F(ServerUpdate, CompletesBlocksFromTheServersThatHaveThem) {
  for (const int servers : numbers_of_servers()) {
    TinyServerStep step(servers);
    const std::size_t floats = step.params.size();
    std::vector<float> a(floats, 1000.0f * static_cast<float>(test_world().rank())), b = a;
    for (float& value : b) value += 1.0f;
    const std::vector<std::span<float>> blocks{a, b};
    std::vector<float> running(32, static_cast<float>(test_world().rank()));
    const std::vector<std::span<float>> shared{running};
    step.update().complete(blocks, shared);
    EXPECT_EQ(running, std::vector<float>(32, static_cast<float>(test_world().size() - servers)));
    const int workers = test_world().size() - servers;
    for (int s = 0; s < servers; ++s) {
      const ParamSpan span = step.update().spans()[static_cast<std::size_t>(s)];
      for (std::size_t i = span.begin; i < span.end; ++i) {
        ASSERT_EQ(a[i], 1000.0f * static_cast<float>(workers + s));
        ASSERT_EQ(b[i], a[i] + 1.0f);
      }
    }
  }
}

TEST_F(ServerUpdate, TakesNoMemoryInAStep) {
  TinyServerStep step(1);
  step.totals.reserve(20);
  step.stops.reserve(20);
  step.decay.reserve(20);
  step.steps.reserve(20);
  const auto runner = step.runner();
  for (int i = 0; i < 5; ++i) runner->replay();
  const long before = test::allocations();
  for (int i = 0; i < 10; ++i) runner->replay();
  EXPECT_EQ(test::allocations(), before);
}

TEST_F(ServerUpdate, MarksTheTasksInWhichARankWaitsForOthers) {
  TinyServerStep step(1);
  const auto runner = step.runner();
  std::vector<std::string> names;
  for (const Task& task : runner->program().tasks()) {
    if (task.kind == engine::TaskKind::collective) names.push_back(task.name);
  }
  EXPECT_EQ(names, step.serves()
                       ? (std::vector<std::string>{"wait for pushes", "compare servers", "answer workers"})
                       : (std::vector<std::string>{"push to server 0", "pull"}));
}

TEST_F(ServerUpdate, RefusesPartsThatDoNotFit) {
  TinyServerStep step(1);
  const auto refuses = [&](const char* what, auto spoil) {
    StepParts parts = step.parts();
    spoil(parts);
    StepProgram program("train");
    EXPECT_THROW(step.update().append(program, std::move(parts), {}), std::logic_error) << what;
  };
  refuses("no updates", [](StepParts& parts) { parts.update.clear(); });
  const auto refuses_state = [&](const char* what, auto spoil) {
    StepState state = step.state();
    spoil(state);
    step.update().bind(state);
    refuses(what, [](StepParts&) {});
    step.update().bind(step.state());
  };
  refuses_state("no decay sums", [](StepState& state) { state.decay_sums = {}; });
  refuses_state("fewer parameters", [](StepState& state) { state.params = state.params.first(16); });
  refuses_state("no step", [](StepState& state) { state.step = nullptr; });
  refuses("a norm", [](StepParts& parts) { parts.before_updates = Task{"norm", {}, {}, [](Lane&) {}, {}}; });
  refuses("a server that computes, or a worker that does not", [&](StepParts& parts) {
    if (step.serves()) {
      parts.compute.push_back({"backward", {}, {}, [](Lane&) {}, {}});
    } else {
      parts.compute.clear();
    }
  });
}

}  // namespace
}  // namespace cifar_mpi::comm
