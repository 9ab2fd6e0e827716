#include "cifar_mpi/engine/step_tasks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

namespace cifar_mpi::engine {
namespace {

bool touches(const std::vector<Bytes>& ranges, const void* at) {
  const Bytes byte{static_cast<const std::byte*>(at), 1};
  return std::any_of(ranges.begin(), ranges.end(), [&](const Bytes& range) { return range.overlaps(byte); });
}

TEST(StepTasks, DeclareTheFactsAndRequestsOfARankForTheFirstPartOfItsBatchAlone) {
  RankFacts facts;
  const std::atomic<int> requests{0};
  TrainBinding binding;
  std::vector<float> control(binding.control_layout.floats());
  binding.control = control.data();
  binding.facts = &facts;
  binding.requests = &requests;
  binding.parts = 2;
  for (binding.part = 0; binding.part < 2; ++binding.part) {
    const Task task = declare_control(binding, bytes_of(&requests, 1));
    EXPECT_TRUE(touches(task.writes, &control.back()));
    EXPECT_EQ(touches(task.reads, &facts), binding.part == 0) << "the facts of the step before";
    EXPECT_EQ(touches(task.writes, &facts), binding.part == 0);
    EXPECT_EQ(touches(task.reads, &requests), binding.part == 0);
  }
}

TEST(StepTasks, DeclareOfAnUpdateWhatItsRuleKeepsAndWhatScalesIt) {
  std::vector<float> block(64), control(ControlLayout().floats());
  double norm = 0.0, sum = 0.0;
  std::uint64_t step = 0;
  UpdateBinding binding;
  binding.params = binding.ema = block.data();
  binding.grads = block.data();
  binding.control = control.data();
  binding.step = &step;
  binding.decay_sum = &sum;
  binding.begin = 16;
  binding.end = 32;
  std::vector<float> kept(64);
  for (const bool all : {false, true}) {
    if (all) {
      binding.states[1] = kept.data();
      binding.divides_by_staleness = true;
      binding.gradient_norm = &norm;
    }
    const Task task = declare_update(binding);
    EXPECT_EQ(task.name, "update 16..32");
    for (const auto* const ranges : {&task.reads, &task.writes}) {
      EXPECT_EQ(touches(*ranges, &kept[16]), all);
      EXPECT_EQ(touches(*ranges, &kept[31]), all);
      EXPECT_FALSE(touches(*ranges, &kept[15]) || touches(*ranges, &kept[32]));
    }
    EXPECT_EQ(touches(task.reads, &control[ControlLayout::staleness]), all);
    EXPECT_EQ(touches(task.reads, &norm), all);
  }
}

}  // namespace
}  // namespace cifar_mpi::engine
