#include "report/step_reporter.hpp"

#include <gtest/gtest.h>

#include "cifar_mpi/base/text.hpp"
#include "support/contains.hpp"

namespace cifar_mpi::report {
namespace {

// Decay by a tenth after every three steps.
optim::Schedule three_steps() {
  optim::ScheduleSpec spec;
  spec.samples = 3;
  spec.global_batch = 1;
  spec.reference_batch = 1;
  spec.base_rate = 0.5;
  spec.epochs_per_decay = 1.0;
  spec.decay_factor = 0.1;
  return optim::Schedule(spec);
}

TEST(StepReporter, AnnouncesARateFromItsFirstStepAlsoInsideAReplay) {
  ProgressView view(
      Log(), [] { return 0; }, false);
  MetricsFile metrics;
  TensorBoard board;
  StepReporter reporter(0, {"node1"},
                        {.total_steps = 100, .steps_per_epoch = 10.0, .global_batch = 1, .log_every = 100},
                        three_steps(), {view, metrics, board}, [] { return -1.0; });
  engine::StepRecord record;
  record.slots.resize(engine::ControlLayout{1}.slots_floats());
  reporter.begin_interval(0);
  testing::internal::CaptureStdout();
  for (std::uint64_t begin = 0; begin < 8; begin += 4) {
    const engine::Replay replay{begin, begin + 4};
    reporter.add(replay, reporter.note_done(replay), record);
  }
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_FALSE(contains(said, "from step 1\n"));
  for (const char* const line : {"0.05 from step 4\n", "0.005 from step 7\n"})
    EXPECT_TRUE(contains(said, concat("learning rate: ", line)));
}

}  // namespace
}  // namespace cifar_mpi::report
