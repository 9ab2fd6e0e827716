#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/step/no_exchange.hpp"
#include "selfcheck/gradient_limits.hpp"
#include "train/run_fixture.hpp"

/// BatchNorm over the samples of all ranks.
namespace cifar_mpi::train {
namespace {

using selfcheck::Gradients;

class SyncBatchNorm : public RunTest {
 protected:
  config::TrainConfig synced(const std::string& name) const {
    config::TrainConfig c = config();
    c.model = "resnet20";
    c.augment = data::Augment::crop;
    c.normalize = data::Normalize::dataset;
    c.optimizer.kind = optim::OptimizerKind::momentum;
    c.lr = 0.01;
    c.sync_batch_norm = true;
    c.run_dir = path(name);
    return c;
  }

  /// What `update` has of the last step, in logical order: gradients, and the statistics of the batch.
  static Gradients sums_of(const SessionState& state, comm::Update& update) {
    const model::ParamTable& params = state.plan.network.params;
    const engine::ParamLayout& layout = state.device.layout;
    const comm::GradientBlock& block = update.block();
    const auto statistics =
        block.control().subspan(step::control_layout(state.plan, state.device).statistics());
    Gradients all(params.size());
    for (std::size_t p = 0; p < params.size(); ++p) {
      const std::size_t at = layout.entries[p].offset, floats = layout.entries[p].floats;
      const bool running = at >= layout.running_begin();
      all[p].resize(static_cast<std::size_t>(params[p].shape.count()));
      state.device.tower->to_logical(p,
                                     running ? statistics.subspan(at - layout.running_begin(), floats)
                                             : block.grads().subspan(at, floats),
                                     all[p]);
    }
    return all;
  }

  /// The first step of all ranks.
  Gradients step_of_ranks(config::TrainConfig c, const std::string& name) {
    c.steps = 1;
    c.run_dir = path(name);
    const auto state = start(c);
    run(*state);
    return sums_of(*state, *state->blocks.update);
  }
  /// The same of rank 0 alone with the samples of all ranks; empty on the others.
  Gradients step_of_one(config::TrainConfig c, const std::string& name) {
    c.batch_size *= world().size();
    c.run_dir = path(name);
    const auto state = start(c);
    if (world().rank() > 0) return {};
    config::Sizes& sizes = state->plan.sizes;
    sizes.workers = sizes.aggregated = 1;
    sizes.global_batch = static_cast<std::uint64_t>(sizes.batch);
    comm::AllReduceUpdate alone(std::make_unique<step::NoExchange>(*state->device.backend),
                                state->device.layout, comm::AllReduceSettings{});
    alone.allocate(step::control_layout(state->plan, state->device).floats());
    const auto step = step::plan_step({state->plan, state->device, state->blocks, alone}, {});
    step->replay();
    step->finish();
    return sums_of(*state, alone);
  }
};

double largest_distance(const model::ParamTable& params, const Gradients& found, const Gradients& wanted) {
  double largest = 0.0;
  for (std::size_t p = 0; p < params.size(); ++p)
    largest = std::max(largest, selfcheck::gradient_distance(params, found, wanted, p));
  return largest;
}

/// The ranks add in another order, and round sums over a rank's batch to fp32, so fp32 has the bound of rounding. In
/// bf16 another order changes roundings of values, so two runs may lie on two sides of the exact one, each as far as
/// bf16 is from fp32.
TEST_F(SyncBatchNorm, EqualsOneRankWithTheWholeBatch) {
  const config::TrainConfig c = synced("run");
  config::TrainConfig plain = c;
  plain.sync_batch_norm = false;
  const Gradients whole = step_of_one(c, "whole");
  const Gradients found = step_of_ranks(c, "synced"), apart = step_of_ranks(plain, "apart");
  config::TrainConfig shorter = c;
  shorter.precision = engine::Precision::bf16;
  const Gradients whole_bf16 = step_of_one(shorter, "whole_bf16");
  const Gradients found_bf16 = step_of_ranks(shorter, "synced_bf16");
  if (world().rank() > 0) return;
  const model::NetSpec net = model::make_model("resnet20", {32, 32, 3}, 10);
  const model::ParamTable params = model::make_param_table(net);
  const double limit = selfcheck::fp32_limits(net, 12).gradients;
  EXPECT_LE(largest_distance(params, found, whole), limit);
  EXPECT_LE(largest_distance(params, found_bf16, whole_bf16),
            2.0 * largest_distance(params, whole_bf16, whole) + limit);
  if (world().size() == 1) {
    EXPECT_EQ(apart, found) << "one rank has nothing to share";
  } else {
    EXPECT_GT(largest_distance(params, apart, whole), 20.0 * limit);
  }
}

/// Images of 10x10 and of 8x8 have two programs, which use one memory for sums.
TEST_F(SyncBatchNorm, LeadsToTheSameBitsWhateverRunsTheStepsAndResumes) {
  config::TrainConfig c = synced("whole");
  c.steps = 3;
  c.image_sizes = {{10, 0.125}, {8}};
  const std::vector<std::vector<float>> wanted = rows_after(c);
  for (const auto runner : {engine::RunnerKind::serial, engine::RunnerKind::audit}) {
    c.runner = runner;
    c.run_dir = path(std::string(to_string(runner)));
    EXPECT_EQ(rows_after(c), wanted) << to_string(runner);
  }
  c.runner = engine::RunnerKind::lanes;
  c.overlap = comm::Overlap::on;
  c.side_lane = false;
  c.run_dir = path("stopped");
  c.steps = 2;
  c.trace = {1, 2};
  run(c);
  c.steps = 3;
  c.trace = {};
  EXPECT_EQ(rows_after(c), wanted);
  c.sync_batch_norm = false;
  c.steps = 4;
  expect_agreed(ErrorKind::checkpoint, "--sync-batch-norm", [&] { start(c); });
}

TEST_F(SyncBatchNorm, IsRefusedWhereThereIsNone) {
  config::TrainConfig c = synced("run");
  c.model = "tutorial";
  expect_agreed(ErrorKind::usage, "--sync-batch-norm has no effect: model tutorial has no BatchNorm",
                [&] { start(c); });
}

}  // namespace
}  // namespace cifar_mpi::train
