#include "cpu/control.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cpu/task_runs.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::ControlLayout;
using engine::StepRecord;

TEST(Control, ZeroesTheBlockAndSaysWhatThisRankAsks) {
  std::atomic<int> request = 0;
  for (const std::atomic<int>* stop :
       {static_cast<const std::atomic<int>*>(nullptr), static_cast<const std::atomic<int>*>(&request)}) {
    for (const int asked : {0, 1, 2, 3, 4}) {
      request = asked;
      engine::TrainBinding binding;
      binding.control_layout.ranks = 3;
      std::vector<float> control(binding.control_layout.floats(), 7.0f);
      binding.control = control.data();
      binding.requests = stop;
      testing::run_audited(plan_control(binding), {testing::region(control)});
      std::vector<float> wanted(control.size(), 0.0f);
      wanted[ControlLayout::stop] = stop != nullptr && (asked & engine::kStopRequest) != 0 ? 1.0f : 0.0f;
      wanted[ControlLayout::save] = stop != nullptr && (asked & engine::kSaveRequest) != 0 ? 1.0f : 0.0f;
      wanted[ControlLayout::trace] = stop != nullptr && (asked & engine::kTraceRequest) != 0 ? 1.0f : 0.0f;
      EXPECT_EQ(control, wanted) << asked;
    }
  }
}

/// A training step of rank 1 of 3 as far as its first task needs it; everything in it is audited.
struct OwnFacts {
  OwnFacts() {
    binding.control_layout.ranks = 3;
    control.assign(binding.control_layout.floats(), 7.0f);
    binding.control = control.data();
    binding.rank = 1;
    binding.facts = &facts;
    binding.requests = &request;
  }
  void run(const engine::Task& task) {
    testing::run_audited(task, {testing::region(control), engine::bytes_of(&facts, 1)});
  }

  engine::TrainBinding binding;
  engine::RankFacts facts{.started_s = 0.0, .compute_ms = 12.5f, .param_hash = 0xFEDC'BA98'7654'3210u};
  std::atomic<int> request = 1;
  std::vector<float> control;
};

TEST(Control, CarriesTheFactsInTheSlotOfItsRank) {
  OwnFacts own;
  const double before = steady_seconds();
  own.run(plan_control(own.binding));
  std::vector<float> wanted(own.control.size(), 0.0f);
  wanted[ControlLayout::stop] = 1.0f;
  const std::size_t slot = own.binding.control_layout.slot(1);
  wanted[slot + ControlLayout::compute_ms] = 12.5f;
  for (const std::size_t piece : {0u, 1u, 2u, 3u}) {  // the lowest 16 bits first
    const float pieces[] = {0x3210, 0x7654, 0xBA98, 0xFEDC};
    wanted[slot + ControlLayout::hash_pieces + piece] = pieces[piece];
  }
  EXPECT_EQ(own.control, wanted);
  EXPECT_GE(own.facts.started_s, before);
  EXPECT_LE(own.facts.started_s, steady_seconds());
}

TEST(Control, CarriesFactsAndStopWordInTheFirstPartOnly) {
  OwnFacts own;
  own.binding.parts = 2;
  own.binding.part = 1;
  own.run(plan_control(own.binding));
  EXPECT_EQ(own.control, std::vector<float>(own.control.size(), 0.0f));
  EXPECT_EQ(own.facts.started_s, 0.0);
}

TEST(Control, NotesTheTimeOfTheStep) {
  OwnFacts own;
  own.facts.started_s = steady_seconds() - 2.0;
  const double before = own.facts.started_s;
  own.run(plan_compute_time(&own.facts));
  const double most = 1e3 * (steady_seconds() - before);
  EXPECT_GE(own.facts.compute_ms, 2000.0f);
  EXPECT_LE(own.facts.compute_ms, most * (1.0 + 0x1p-24));  // rounded to fp32
  EXPECT_EQ(own.facts.started_s, before);
  EXPECT_EQ(own.facts.param_hash, 0xFEDC'BA98'7654'3210u);
}

struct Advance : ::testing::Test {
  Advance() {
    layout.ranks = 2;
    control.resize(layout.floats());
    for (std::size_t i = 0; i < control.size(); ++i) control[i] = static_cast<float>(i + 1);
    task = plan_advance({control.data(), layout, 256, decay_sums, &step}, records);
  }
  void run() {
    testing::run_audited(task,
                         {testing::region(control), testing::region(decay_sums), engine::bytes_of(&step, 1)});
  }
  ControlLayout layout;
  std::vector<float> control;
  std::vector<double> decay_sums{0.25, 0.5};
  std::uint64_t step = 300;
  std::vector<StepRecord> records;
  engine::Task task;
};

TEST_F(Advance, LeavesTheSumsOfTheStepForTheHost) {
  control[ControlLayout::loss_sum] = 512.0f;
  control[ControlLayout::correct] = 100.0f;
  control[ControlLayout::samples] = 256.0f;
  control[ControlLayout::stop] = 2.0f;
  control[ControlLayout::trace] = 1.0f;
  control[ControlLayout::save] = 3.0f;
  ASSERT_EQ(records.size(), engine::kRecordRing);
  const StepRecord& record = records[300 % engine::kRecordRing];
  const float* slots = record.slots.data();
  run();
  EXPECT_EQ(step, 301u);
  EXPECT_EQ(record.step, 300u);
  EXPECT_EQ(record.cross_entropy, 2.0);
  EXPECT_EQ(record.decay_term, 0.75);
  EXPECT_EQ(record.correct, 100.0);
  EXPECT_EQ(record.samples, 256.0);
  EXPECT_EQ(record.stop_requests, 2.0);
  EXPECT_EQ(record.trace_requests, 1.0);
  EXPECT_EQ(record.save_requests, 3.0);
  EXPECT_TRUE(record.applied);
  EXPECT_EQ(record.slots, std::vector<float>(control.begin() + ControlLayout::header_floats,
                                             control.begin() + ControlLayout::header_floats + 16));
  EXPECT_EQ(record.slots.data(), slots) << "the slots were allocated during a replay";
}

TEST_F(Advance, OfSeveralStepsMovesACounterForEachAndLeavesTheRecordOfTheLast) {
  std::uint64_t steps[] = {300, 301, 302};
  engine::AdvanceBinding binding{control.data(), layout, 256, decay_sums, steps};
  binding.steps = 3;
  task = plan_advance(binding, records);
  for (int replay = 0; replay < 2; ++replay) {
    testing::run_audited(task,
                         {testing::region(control), testing::region(decay_sums), engine::bytes_of(steps, 3)});
  }
  EXPECT_EQ(std::vector(steps, steps + 3), (std::vector<std::uint64_t>{306, 307, 308}));
  EXPECT_EQ(records[100].step, 302u);
  EXPECT_EQ(records[101].step, 305u);
  control[ControlLayout::loss_sum] = std::numeric_limits<float>::quiet_NaN();
  testing::run(task);
  EXPECT_EQ(steps[2], 308u);
  EXPECT_FALSE(records[102].applied);
}

TEST_F(Advance, StaysWhereTheNormOfTheGradientIsNotFinite) {
  double norm = 3.5;
  engine::AdvanceBinding binding{control.data(), layout, 256, decay_sums, &step, &norm};
  task = plan_advance(binding, records);
  const auto run_with_norm = [&] {
    testing::run_audited(task, {testing::region(control), testing::region(decay_sums),
                                engine::bytes_of(&step, 1), engine::bytes_of(&norm, 1)});
  };
  run_with_norm();
  EXPECT_TRUE(records[44].applied);
  EXPECT_EQ(records[44].gradient_norm, 3.5);
  norm = std::numeric_limits<double>::infinity();
  run_with_norm();
  EXPECT_EQ(step, 301u);
  EXPECT_FALSE(records[45].applied);
}

TEST_F(Advance, StaysWhereTheLossIsNotFinite) {
  for (const float loss : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    records[44].applied = true;
    control[ControlLayout::loss_sum] = loss;
    run();
    EXPECT_EQ(step, 300u);
    EXPECT_FALSE(records[44].applied);
    EXPECT_EQ(records[44].step, 300u);
  }
}

TEST_F(Advance, StaysWhereTheDecayTermIsNotFinite) {
  control[ControlLayout::loss_sum] = 512.0f;
  for (const double sum :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    records[44].applied = true;
    decay_sums.back() = sum;
    run();
    EXPECT_EQ(step, 300u);
    EXPECT_FALSE(records[44].applied);
    EXPECT_EQ(records[44].cross_entropy, 2.0);
  }
}

TEST_F(Advance, FillsTheRingInOrder) {
  for (int i = 0; i < 3; ++i) run();
  EXPECT_EQ(records[44].step, 300u);
  EXPECT_EQ(records[45].step, 301u);
  EXPECT_EQ(records[46].step, 302u);
}

}  // namespace
}  // namespace cifar_mpi::cpu
