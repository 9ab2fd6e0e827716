#include "cifar_mpi/comm/server_update.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <stdexcept>

#include "cifar_mpi/engine/runner.hpp"
#include "support/allocation_count.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::comm {
namespace {

using engine::bytes_of;
using engine::Lane;
using engine::RunnerKind;
using engine::StepProgram;
using engine::Task;
using test::test_world;

constexpr std::size_t kControl = 16;

/// Of many magnitudes: added in another order they give other bits.
float gradient(int worker, std::size_t i, float param) {
  const int k = static_cast<int>(i % 13) * 5 + worker * 11;
  return (static_cast<float>(k % 17) - 8.0f) * std::ldexp(1.1f, k % 23) + 1e-3f * param;
}

float updated(float param, float sum, float factor) { return param + 1e-8f * sum * factor; }

engine::ParamLayout three_parameters() {
  engine::ParamLayout layout;
  for (const std::size_t floats : {16u, 1024u, 160u}) engine::append(layout, floats);
  return layout;
}

/// A step that does nothing but arithmetic, on workers and servers.
class TinyServerStep {
 public:
  explicit TinyServerStep(int servers, bool overlap = true)
      : workers_(test_world().size() - servers),
        update_(make_server_update(test_world(), layout_, {servers, overlap, &requests})),
        block_(update_->allocate(kControl)),
        decay_sums_(static_cast<std::size_t>(servers), -1.0) {
    params.resize(layout_.floats);
    std::iota(params.begin(), params.end(), 1.0f);
  }

  bool serves() const { return test_world().rank() >= workers_; }
  Update& update() { return *update_; }
  std::span<float> control() const { return block_.span<float>().first(kControl); }
  std::span<float> grads() const { return block_.span<float>().subspan(kControl); }

  StepParts parts() {
    StepParts parts;
    parts.control = control();
    parts.grads = grads();
    parts.params = params;
    parts.decay_sums = decay_sums_;
    if (!serves()) add_compute(parts);
    for (std::size_t s = 0; s < update_->spans().size(); ++s) parts.update.push_back(update_task(s));
    parts.finish = {{"advance",
                     {bytes_of(control().data(), kControl), bytes_of(decay_sums_.data(), decay_sums_.size())},
                     {},
                     [this](Lane&) {
                       totals.push_back(control()[0]);
                       stops.push_back(control()[engine::ControlLayout::stop]);
                       decay.push_back(std::accumulate(decay_sums_.begin(), decay_sums_.end(), 0.0));
                     },
                     {}}};
    return parts;
  }

  std::unique_ptr<engine::Runner> runner(RunnerKind kind = RunnerKind::lanes, Concurrency concurrent = {}) {
    StepProgram program("train");
    update_->append(program, parts(), concurrent);
    program.finalize();
    return engine::make_host_runner(std::move(program), kind, engine::WhileWaiting::yield,
                                    {{block_.data(), block_.size()}, bytes_of(params.data(), params.size())});
  }

  std::vector<float> params;
  std::vector<float> totals, stops;  ///< by step
  std::vector<double> decay;
  std::atomic<int> requests{0};

 private:
  void add_compute(StepParts& parts) {
    parts.compute.push_back({"control",
                             {},
                             {bytes_of(control().data(), kControl)},
                             [this](Lane&) { std::fill(control().begin(), control().end(), 0.0f); },
                             {}});
    parts.compute.push_back({"loss",
                             {},
                             {bytes_of(control().data(), 1)},
                             [this](Lane&) { control()[0] = static_cast<float>(test_world().rank() + 1); },
                             {}});
    for (const auto& [offset, floats] : layout_.entries) {
      parts.compute.push_back({"backward",
                               {bytes_of(params.data() + offset, floats)},
                               {bytes_of(grads().data() + offset, floats)},
                               [this, begin = offset, end = offset + floats](Lane&) {
                                 for (std::size_t i = begin; i < end; ++i)
                                   grads()[i] = gradient(test_world().rank(), i, params[i]);
                               },
                               {}});
    }
  }

  Task update_task(std::size_t s) {
    const ParamSpan span = update_->spans()[s];
    const std::size_t count = span.end - span.begin;
    return {"update",
            {bytes_of(control().data(), kControl), bytes_of(grads().data() + span.begin, count),
             bytes_of(params.data() + span.begin, count)},
            {bytes_of(params.data() + span.begin, count), bytes_of(&decay_sums_[s], 1)},
            [this, span, s](Lane&) {
              decay_sums_[s] = static_cast<double>(span.end - span.begin);
              for (std::size_t i = span.begin; i < span.end; ++i)
                params[i] = updated(params[i], grads()[i], control()[0]);
            },
            {}};
  }

  const engine::ParamLayout layout_ = three_parameters();
  int workers_;
  std::unique_ptr<Update> update_;
  Buffer block_;
  std::vector<double> decay_sums_;
};

/// The parameters after `steps` steps, the sums made in rank order.
std::vector<float> expected_params(std::size_t count, int workers, int steps) {
  std::vector<float> params(count);
  std::iota(params.begin(), params.end(), 1.0f);
  const float total = static_cast<float>(workers * (workers + 1) / 2);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < count; ++i) {
      float sum = gradient(0, i, params[i]);
      for (int w = 1; w < workers; ++w) sum += gradient(w, i, params[i]);
      params[i] = updated(params[i], sum, total);
    }
  }
  return params;
}

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
        // A server has its own span, and the others as they began.
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
    step.update().complete(blocks);
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
  refuses("no decay sums", [](StepParts& parts) { parts.decay_sums = {}; });
  refuses("control apart", [](StepParts& parts) { parts.control = parts.control.first(8); });
  refuses("fewer parameters", [](StepParts& parts) { parts.params = parts.params.first(16); });
  refuses("a norm", [](StepParts& parts) { parts.before_updates = Task{"norm", {}, {}, [](Lane&) {}, {}}; });
  refuses("a server that computes, or a worker that does not", [&](StepParts& parts) {
    if (step.serves()) {
      parts.compute.push_back({"backward", {}, {}, [](Lane&) {}, {}});
    } else {
      parts.compute.clear();
    }
  });
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
