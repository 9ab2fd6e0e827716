#include "cifar_mpi/comm/all_reduce_update.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "cifar_mpi/engine/runner.hpp"
#include "cifar_mpi/engine/verify.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::comm {
namespace {

using engine::bytes_of;
using engine::Instruction;
using engine::Lane;
using engine::Op;
using engine::RunnerKind;
using engine::StepProgram;
using engine::Task;
using test::test_world;

constexpr std::size_t kControl = 16;

/// The gradient of rank `rank` for parameter element `i` of value `param`: an integer small enough for exact
/// sums of many steps.
float gradient(int rank, std::size_t i, float param) {
  const int p = static_cast<int>(param) % 5;
  return static_cast<float>((static_cast<int>(i % 11) * 3 + rank * 7 + p) % 9 - 4);
}

/// A step of five parameters that does nothing but arithmetic on integers.
class TinyStep {
 public:
  explicit TinyStep(std::unique_ptr<Collective> collective, std::size_t bucket_bytes = 1, bool overlap = true)
      : update_(std::move(collective), layout_,
                {static_cast<double>(bucket_bytes) / (1 << 20), Wire::fp32, overlap}) {
    update_.allocate(kControl);
    params_.resize(layout_.floats);
    std::iota(params_.begin(), params_.end(), 1.0f);
  }

  AllReduceUpdate& update() { return update_; }
  std::span<float> control() { return update_.block().control(); }
  std::span<float> grads() { return update_.block().grads(); }
  const std::vector<float>& params() const { return params_; }
  const std::vector<float>& totals() const { return totals_; }
  StepProgram program(StepParts parts, Concurrency concurrent = {}) {
    StepProgram program("train");
    update_.append(program, std::move(parts), concurrent);
    program.finalize();
    return program;
  }
  std::vector<engine::Bytes> regions() {
    const std::span<float> block = update_.block().all();
    return {bytes_of(block.data(), block.size()), param_bytes(0, params_.size())};
  }

  /// `order`: the order in which backward finishes the parameters.
  StepParts parts(const std::vector<std::size_t>& order = {0, 1, 2, 3, 4}) {
    StepParts parts;
    parts.compute.push_back({"control",
                             {},
                             {bytes_of(control().data(), kControl)},
                             [this](Lane&) {
                               for (float& value : control()) value = 0;
                             },
                             {}});
    parts.compute.push_back({"loss",
                             {param_bytes(0, params_.size())},
                             {bytes_of(control().data(), 1)},
                             [this](Lane&) { control()[0] = static_cast<float>(test_world().rank() + 1); },
                             {}});
    for (const std::size_t p : order) parts.compute.push_back(backward(p));
    for (const ParamSpan& span : update_.spans()) parts.update.push_back({update_task(span)});
    parts.finish = {{"advance",
                     {bytes_of(control().data(), kControl)},
                     {bytes_of(&step_, 1)},
                     [this](Lane&) {
                       totals_.push_back(control()[0]);
                       ++step_;
                     },
                     {}}};
    return parts;
  }

 private:
  engine::Bytes param_bytes(std::size_t begin, std::size_t count) const {
    return bytes_of(params_.data() + begin, count);
  }

  Task backward(std::size_t p) {
    const auto [offset, floats] = layout_.entries[p];
    return {"backward",
            {param_bytes(offset, floats)},
            {bytes_of(grads().data() + offset, floats)},
            [this, begin = offset, end = offset + floats](Lane&) {
              for (std::size_t i = begin; i < end; ++i)
                grads()[i] = gradient(test_world().rank(), i, params_[i]);
            },
            {}};
  }

  Task update_task(const ParamSpan& span) {
    const std::size_t count = span.end - span.begin;
    return {"update",
            {bytes_of(control().data(), kControl), bytes_of(grads().data() + span.begin, count),
             param_bytes(span.begin, count)},
            {param_bytes(span.begin, count)},
            [this, span](Lane&) {
              for (std::size_t i = span.begin; i < span.end; ++i) params_[i] += grads()[i] * control()[0];
            },
            {}};
  }

  static engine::ParamLayout five_parameters() {
    engine::ParamLayout layout;
    for (const std::size_t floats : {16u, 48u, 1024u, 32u, 160u}) engine::append(layout, floats);
    return layout;
  }

  const engine::ParamLayout layout_ = five_parameters();
  AllReduceUpdate update_;
  std::vector<float> params_;
  std::vector<float> totals_;
  int step_ = 0;
};

/// The parameters after `steps` steps over all ranks, computed by one.
std::vector<float> expected_params(std::size_t count, int steps) {
  std::vector<float> params(count);
  std::iota(params.begin(), params.end(), 1.0f);
  const int ranks = test_world().size();
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < ranks; ++r) sum += gradient(r, i, params[i]);
      params[i] += sum * static_cast<float>(ranks * (ranks + 1) / 2);
    }
  }
  return params;
}

/// Pretends to have three ranks, for programs that are inspected and not run.
class ThreeRanks : public Collective {
 public:
  explicit ThreeRanks(std::vector<std::size_t>* exact = nullptr) : exact_(exact) {}
  std::string_view name() const override { return "three"; }
  int ranks() const override { return 3; }
  Buffer allocate(std::size_t bytes) override { return allocate_host(bytes); }
  Task all_reduce(std::string name, std::span<float> data, std::size_t exact) override {
    if (exact_ != nullptr) exact_->push_back(exact);
    return {std::move(name),
            {bytes_of(data.data(), data.size())},
            {bytes_of(data.data(), data.size())},
            [](Lane&) {},
            [] { return true; }};
  }

 private:
  std::vector<std::size_t>* exact_;  ///< of the requested tasks
};

class OneRank : public ThreeRanks {
 public:
  int ranks() const override { return 1; }
};

/// The program without its line `left_out`.
StepProgram without(const StepProgram& program, std::size_t left_out) {
  StepProgram copy("copy");
  for (std::size_t i = 0; i < program.instructions().size(); ++i) {
    const Instruction& line = program.instructions()[i];
    if (i == left_out) continue;
    if (line.op == Op::run) copy.run(line.lane, program.tasks()[static_cast<std::size_t>(line.target)]);
    if (line.op == Op::set) copy.set(line.lane);
    if (line.op == Op::wait) copy.wait(line.lane, line.target);
  }
  return copy;
}

class ReducedStep : public testing::TestWithParam<std::string_view> {};

TEST_P(ReducedStep, SumsEveryGradientWhateverTheRunnerAndOverlap) {
  constexpr int kSteps = 4;
  for (const bool overlap : {true, false}) {
    for (const RunnerKind kind : {RunnerKind::lanes, RunnerKind::serial, RunnerKind::audit}) {
      for (const std::size_t bucket_bytes : {1u, 200u, 1u << 20}) {
        TinyStep step(make_collective(GetParam(), test_world()), bucket_bytes, overlap);
        const auto runner = engine::make_host_runner(step.program(step.parts()), kind,
                                                     engine::WhileWaiting::yield, step.regions());
        for (int i = 0; i < kSteps; ++i) runner->replay();
        runner->finish();
        EXPECT_EQ(step.params(), expected_params(step.params().size(), kSteps))
            << "overlap " << overlap << ", runner " << static_cast<int>(kind) << ", bucket " << bucket_bytes;
        const float total = static_cast<float>(test_world().size() * (test_world().size() + 1) / 2);
        EXPECT_EQ(step.totals(), std::vector<float>(kSteps, total));
      }
    }
  }
}

TEST_P(ReducedStep, FollowsABackwardThatFinishesInAnotherOrder) {
  TinyStep step(make_collective(GetParam(), test_world()));
  const auto runner = engine::make_host_runner(step.program(step.parts({4, 2, 0, 1, 3})), RunnerKind::lanes,
                                               engine::WhileWaiting::yield, {});
  for (int i = 0; i < 3; ++i) runner->replay();
  EXPECT_EQ(step.params(), expected_params(step.params().size(), 3));
}

INSTANTIATE_TEST_SUITE_P(Collective, ReducedStep, testing::Values("window", "ring", "doubling", "mpi"),
                         [](const auto& choice) { return std::string(choice.param); });

/// The index of the first `run` of a task of that name.
std::size_t line_of(const StepProgram& program, std::string_view name) {
  const std::vector<Instruction>& lines = program.instructions();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t target = static_cast<std::size_t>(lines[i].target);
    if (lines[i].op == Op::run && program.tasks()[target].name == name) return i;
  }
  return lines.size();
}

std::size_t count_lines(const StepProgram& program, Op op) {
  std::size_t count = 0;
  for (const Instruction& line : program.instructions()) count += line.op == op ? 1 : 0;
  return count;
}

TEST(Overlap, IsWhatWasAskedForAndElseWhatPays) {
  for (const bool device : {false, true}) {
    EXPECT_TRUE(resolve_overlap(Overlap::on, test_world(), device));
    EXPECT_FALSE(resolve_overlap(Overlap::off, test_world(), device));
    const Path path = device ? Path::device : Path::memory;  // all ranks of a test are on one node
    EXPECT_EQ(resolve_overlap(Overlap::automatic, test_world(), device), overlap_pays(path));
  }
}

TEST(AllReduceUpdate, NeedsEveryWaitItPlaces) {
  for (const bool overlap : {true, false}) {
    TinyStep step(std::make_unique<ThreeRanks>(), 1, overlap);
    const StepProgram program = step.program(step.parts());
    const std::size_t buckets = step.update().spans().size();
    EXPECT_EQ(buckets, 5u);
    EXPECT_EQ(count_lines(program, Op::wait), buckets + (overlap ? buckets : 1));
    for (std::size_t i = 0; i < program.instructions().size(); ++i) {
      if (program.instructions()[i].op != Op::wait) continue;
      EXPECT_FALSE(engine::find_races(without(program, i)).empty())
          << "line " << i << ", overlap " << overlap;
    }
  }
}

/// The task that reads all sums comes after the last of them, so that one wait is enough, and before the
/// first update.
TEST(AllReduceUpdate, LetsAllUpdatesWaitForWhatStandsBeforeThem) {
  for (const bool overlap : {true, false}) {
    TinyStep step(std::make_unique<ThreeRanks>(), 1, overlap);
    StepParts parts = step.parts();
    parts.before_updates =
        Task{"norm", {bytes_of(step.grads().data(), step.grads().size())}, {}, [](Lane&) {}, {}};
    const std::size_t waits = count_lines(step.program(step.parts()), Op::wait);
    const StepProgram program = step.program(std::move(parts));
    EXPECT_EQ(count_lines(program, Op::wait), waits - step.update().spans().size() + 1);
    EXPECT_LT(line_of(program, "all-reduce of bucket 4"), line_of(program, "norm"));
    EXPECT_LT(line_of(program, "norm"), line_of(program, "update"));
    for (std::size_t i = 0; i < program.instructions().size(); ++i) {
      if (program.instructions()[i].op != Op::wait) continue;
      EXPECT_FALSE(engine::find_races(without(program, i)).empty()) << "line " << i;
    }
  }
}

TEST(AllReduceUpdate, StandsBeforeTheUpdatesOfOneRankToo) {
  TinyStep step(std::make_unique<OneRank>());
  StepParts parts = step.parts();
  parts.before_updates =
      Task{"norm", {bytes_of(step.grads().data(), step.grads().size())}, {}, [](Lane&) {}, {}};
  const StepProgram program = step.program(std::move(parts));
  EXPECT_LT(line_of(program, "norm"), line_of(program, "update"));
  EXPECT_LT(line_of(program, "norm"), program.instructions().size());
}

TEST(AllReduceUpdate, SendsTheFirstBucketBeforeTheNextIsComputed) {
  TinyStep step(std::make_unique<ThreeRanks>());
  StepParts parts = step.parts();
  parts.compute.back().name = "the last of backward";
  parts.compute[3].name = "the second of backward";
  const StepProgram early = step.program(parts);
  EXPECT_LT(line_of(early, "all-reduce of bucket 0"), line_of(early, "the second of backward"));
  EXPECT_LT(line_of(early, "all-reduce of bucket 3"), line_of(early, "the last of backward"));
  EXPECT_GT(line_of(early, "all-reduce of bucket 4"), line_of(early, "the last of backward"));
  const StepProgram late = step.program(parts, {.exchange = false});
  EXPECT_GT(line_of(late, "all-reduce of bucket 0"), line_of(late, "the last of backward"));
}

TEST(AllReduceUpdate, HoldsABucketBackWhileATaskStillReadsIt) {
  TinyStep step(std::make_unique<ThreeRanks>());
  StepParts parts = step.parts();
  parts.compute.push_back({"norm", {bytes_of(step.grads().data(), 1)}, {}, [](Lane&) {}, {}});
  const StepProgram program = step.program(parts);
  EXPECT_GT(line_of(program, "all-reduce of bucket 0"), line_of(program, "norm"));
  EXPECT_LT(line_of(program, "all-reduce of bucket 1"), line_of(program, "norm"));
}

TEST(AllReduceUpdate, SumsTheControlBlockWithTheFirstBucket) {
  std::vector<std::size_t> exact;
  TinyStep step(std::make_unique<ThreeRanks>(&exact));
  const StepProgram program = step.program(step.parts());
  const Instruction& line = program.instructions()[line_of(program, "all-reduce of bucket 0")];
  const Task& task = program.tasks()[static_cast<std::size_t>(line.target)];
  ASSERT_EQ(task.writes.size(), 1u);
  EXPECT_EQ(task.writes[0].begin, bytes_of(step.control().data(), 1).begin);
  EXPECT_EQ(task.writes[0].size, (kControl + 16) * sizeof(float));
  // The whole control block travels as fp32; no gradient must.
  EXPECT_EQ(exact, (std::vector<std::size_t>{kControl, 0, 0, 0, 0}));
}

/// Local steps also sum the optimizer's state; before they begin, only gradients are summed.
TEST(AllReduceUpdate, SumsSeveralBlocksEachCutAsTheFirstOrTheFirstAlone) {
  engine::ParamLayout layout;
  for (const std::size_t floats : {16u, 48u, 1024u}) engine::append(layout, floats);
  const std::size_t block = layout.trained_floats;
  AllReduceUpdate update(std::make_unique<ThreeRanks>(), layout,
                         {.bucket_mib = 64.0 * 4 / (1 << 20), .blocks = 2});
  update.allocate(kControl);
  const std::span<float> memory = update.block().all();
  EXPECT_EQ(memory.size(), kControl + 2 * block);
  EXPECT_EQ(update.block().grads().data(), memory.data() + kControl);
  const auto spans = update.spans();
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[1].end, block);
  EXPECT_EQ(spans[2].begin, block);
  EXPECT_EQ(spans[2].end, block + spans[0].end);
  EXPECT_EQ(spans[3].end, 2 * block);
  for (const std::size_t blocks : {1u, 2u}) {
    StepParts parts;
    parts.compute.push_back({"backward", {}, {bytes_of(memory.data(), memory.size())}, [](Lane&) {}, {}});
    for (std::size_t i = 0; i < 2 * blocks; ++i)
      parts.update.push_back({Task{"update", {}, {}, [](Lane&) {}, {}}});
    StepProgram program("blocks");
    update.append(program, std::move(parts), {});
    program.finalize();
    EXPECT_EQ(line_of(program, "all-reduce of bucket 3") < program.instructions().size(), blocks == 2);
  }
}

TEST(AllReduceUpdate, PlacesNoCommunicationInAWorldOfOne) {
  if (test_world().size() != 1) GTEST_SKIP() << "needs exactly 1 rank";
  TinyStep step(make_collective("ring", test_world()));
  const StepProgram program = step.program(step.parts());
  EXPECT_EQ(program.lanes(), 1);
  EXPECT_EQ(program.tasks().size(), 7u + 1u + 1u);  // one update of everything
  EXPECT_EQ(count_lines(program, Op::wait), 0u);
}

TEST(AllReduceUpdate, RefusesPartsThatDoNotFit) {
  TinyStep step(std::make_unique<ThreeRanks>());
  const auto refuses = [&](const char* what, auto spoil) {
    StepParts parts = step.parts();
    spoil(parts);
    EXPECT_THROW(step.program(std::move(parts)), std::logic_error) << what;
  };
  EXPECT_NO_THROW(step.program(step.parts()));
  refuses("a bucket that no task writes", [](StepParts& parts) { parts.compute.pop_back(); });
  refuses("nothing computed", [](StepParts& parts) { parts.compute.clear(); });
  refuses("no updates", [](StepParts& parts) { parts.update.clear(); });
  refuses("an update for fewer buckets", [](StepParts& parts) { parts.update.pop_back(); });
}

TEST(AllReduceUpdate, MarksTheTasksInWhichARankWaitsForOthers) {
  TinyStep step(std::make_unique<ThreeRanks>());
  const StepProgram program = step.program(step.parts());
  for (const Instruction& line : program.instructions()) {
    if (line.op != Op::run) continue;
    const Task& task = program.tasks()[static_cast<std::size_t>(line.target)];
    EXPECT_EQ(task.kind == engine::TaskKind::collective, line.lane == engine::kComm) << task.name;
  }
}

TEST(AllReduceUpdate, TellsWhatAffectsBits) {
  const AllReduceUpdate update(make_collective("auto", test_world()), {}, {0.3, Wire::fp32, true});
  const std::string chosen = test_world().size() == 1 ? "ring" : "window";
  EXPECT_EQ(update.settings(),
            (RunFingerprint{{"all-reduce", chosen}, {"wire", "fp32"}, {"bucket MiB", "0.3"}}));
  EXPECT_EQ(update.name(), "auto (" + chosen + ")");
}

}  // namespace
}  // namespace cifar_mpi::comm
