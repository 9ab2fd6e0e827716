#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/comm/benchmark.hpp"
#include "cifar_mpi/engine/step_tasks.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::comm {
namespace {

using test::test_world;

/// Memory that holds the negative of the values that `copy` transfers: reading it without `copy` yields other
/// values.
class NegatingBackend : public engine::Backend {
 public:
  std::string description() const override { return "negating"; }
  Buffer allocate(std::size_t bytes) override { return allocate_host(bytes); }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    const auto* const from = reinterpret_cast<const float*>(src);
    std::transform(from, from + bytes / sizeof(float), reinterpret_cast<float*>(dst), std::negate<>());
  }
  engine::Task sum_task(std::string name, const engine::SumBinding& binding) override {
    EXPECT_EQ(binding.b, nullptr);
    engine::Task task = engine::declare_sum(std::move(name), binding);
    task.start = [binding](engine::Lane&) { std::copy_n(binding.a, binding.floats, binding.dst); };
    return task;
  }
  std::unique_ptr<engine::Runner> runner(engine::StepProgram program, engine::RunnerKind kind,
                                         std::vector<engine::Bytes> regions) override {
    tasks_of_programs.emplace_back(program.name(), program.tasks().size());
    return engine::make_host_runner(std::move(program), kind, engine::WhileWaiting::yield,
                                    std::move(regions));
  }

  engine::Precision resolve(engine::Precision) const override { throw std::logic_error("resolve"); }
  engine::TowerKernels plan(const engine::TowerSpec&) override { throw std::logic_error("plan"); }
  engine::Task update_task(const engine::UpdateBinding&, const model::ParamTable&,
                           const engine::ParamLayout&) override {
    throw std::logic_error("update_task");
  }
  std::vector<engine::Task> matrix_tasks(const engine::UpdateBinding&, const engine::Matrix&,
                                         engine::Arena&) override {
    throw std::logic_error("matrix_tasks");
  }
  engine::Task gradient_norm_task(const engine::GradientNormBinding&) override {
    throw std::logic_error("gradient_norm_task");
  }
  engine::Task count_task(std::string, const std::vector<engine::CountBinding>&) override {
    throw std::logic_error("count_task");
  }
  engine::Task running_task(const engine::RunningBinding&, const model::ParamTable&,
                            const engine::ParamLayout&) override {
    throw std::logic_error("running_task");
  }
  engine::Task lookahead_task(const engine::LookaheadBinding&) override {
    throw std::logic_error("lookahead_task");
  }
  engine::Task advance_task(const engine::AdvanceBinding&, std::vector<engine::StepRecord>&) override {
    throw std::logic_error("advance_task");
  }
  Buffer allocate_pinned(std::size_t) override { throw std::logic_error("allocate_pinned"); }
  engine::Task copy_task(std::string, const std::vector<engine::CopyBinding>&) override {
    throw std::logic_error("copy_task");
  }
  engine::Task increment_task(std::string, std::uint64_t*) override {
    throw std::logic_error("increment_task");
  }

  std::vector<std::pair<std::string, std::size_t>> tasks_of_programs;
};

/// MPI's sum, plus one in the first element of rank 0. Like a device's sum, it has no task on one rank.
class OffByOne final : public Collective {
 public:
  explicit OffByOne(const World& world) : sums_(comm::make_collective("mpi", world)), rank_(world.rank()) {}
  std::string_view name() const override { return "off by one"; }
  int ranks() const override { return sums_->ranks(); }
  Buffer allocate(std::size_t bytes) override { return sums_->allocate(bytes); }
  engine::Task all_reduce(std::string task_name, std::span<float> data, std::size_t fp32_prefix) override {
    if (ranks() == 1) throw std::logic_error("nothing to sum");
    engine::Task task = sums_->all_reduce(std::move(task_name), data, fp32_prefix);
    task.poll = [this, data, poll = task.poll] {
      if (!poll()) return false;
      if (rank_ == 0) data[0] += 1.0f;
      return true;
    };
    return task;
  }

 private:
  std::unique_ptr<Collective> sums_;
  int rank_;
};

/// A backend whose collectives record the requests.
Platform platform_of_its_own(std::vector<std::string>& asked_for) {
  return {std::make_unique<NegatingBackend>(),
          {[&](std::string_view name, const World& world, Wire wire) {
             EXPECT_EQ(wire, Wire::fp32);
             asked_for.emplace_back(name);
             return std::make_unique<OffByOne>(world);
           },
           true}};
}

TEST(BackendAllReduceBenchmark, SumsExactlyInTheMemoryOfTheBackend) {
  const AllReduceBenchmarkConfig config{{4, 4096, 1'000'004}, {"mpi", "ring"}, 0.001};
  const AllReduceBenchmark benchmark =
      benchmark_all_reduce(config, test_world(), on_host(std::make_unique<NegatingBackend>()));
  ASSERT_EQ(benchmark.timings.size(), 6u);
  for (std::size_t i = 0; i < benchmark.timings.size(); ++i) {
    const AllReduceTiming& t = benchmark.timings[i];
    EXPECT_EQ(t.bytes, config.bytes[i / 2]);
    EXPECT_EQ(t.algorithm, config.algorithms[i % 2]);
    EXPECT_EQ(t.ranks, test_world().size());
    EXPECT_EQ(t.wrong, 0u) << t.algorithm << ", " << t.bytes << " bytes";
    EXPECT_GE(t.runs, 5);
    EXPECT_GT(t.least_s, 0.0);
    EXPECT_LE(t.least_s, t.median_s);
    EXPECT_LE(t.median_s, t.p99_s);
    EXPECT_GT(t.copy_bytes_per_s, 0.0);
    EXPECT_FALSE(t.mpi_allreduce_s.has_value());
  }
}

TEST(BackendAllReduceBenchmark, RunsAProgramOfAsManySumsAsItSays) {
  auto owner = std::make_unique<NegatingBackend>();
  const NegatingBackend& backend = *owner;
  const Platform platform = on_host(std::move(owner));
  const AllReduceBenchmark benchmark = benchmark_all_reduce({{4}, {"mpi"}, 0.001}, test_world(), platform);
  ASSERT_EQ(benchmark.timings.size(), 1u);
  const auto sums = static_cast<std::size_t>(benchmark.timings[0].sums_per_run);
  EXPECT_LE(sums, 32u);
  const auto made = [&](const char* name, std::size_t tasks) {
    const auto& all = backend.tasks_of_programs;
    return std::find(all.begin(), all.end(), std::pair<std::string, std::size_t>(name, tasks)) != all.end();
  };
  EXPECT_TRUE(made("mpi", sums)) << sums;
  EXPECT_TRUE(made("mpi", 1));  // for the result
  EXPECT_TRUE(made("copy", 1));
}

TEST(BackendAllReduceBenchmark, TakesABackendsOwnCollectivesAndCountsWhatIsWrong) {
  std::vector<std::string> asked_for;
  const Platform platform = platform_of_its_own(asked_for);
  const AllReduceBenchmark benchmark = benchmark_all_reduce({{4, 4096}, {}, 0.001}, test_world(), platform);
  EXPECT_EQ(asked_for, std::vector<std::string>{"auto"});
  ASSERT_EQ(benchmark.timings.size(), 2u);
  for (const AllReduceTiming& t : benchmark.timings) {
    EXPECT_EQ(t.resolved, "off by one");
    EXPECT_EQ(t.wrong, test_world().size() == 1 ? 0u : 1u);
  }
}

TEST(BackendAllReduceBenchmark, SaysThatOneRankSumsNothing) {
  std::vector<std::string> asked_for;
  const Platform platform = platform_of_its_own(asked_for);
  const AllReduceBenchmark benchmark = benchmark_all_reduce({{4}, {}, 0.001}, test_world(), platform);
  EXPECT_EQ(benchmark.notes.size(), test_world().size() == 1 ? 1u : 0u);
}

}  // namespace
}  // namespace cifar_mpi::comm
