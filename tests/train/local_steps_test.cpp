#include <algorithm>
#include <cmath>
#include <set>

#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "step/step_recording.hpp"
#include "train/run_fixture.hpp"

/// The steps of single ranks between two averagings, their averaging, and collective decisions, which wait
/// for it.
namespace cifar_mpi::train {
namespace {

using optim::StateRole;

/// Sums nothing: its rank steps with its own batch.
class Alone final : public comm::Collective {
 public:
  std::string_view name() const override { return "alone"; }
  int ranks() const override { return 1; }
  Buffer allocate(std::size_t bytes) override { return allocate_host(bytes); }
  engine::Task all_reduce(std::string, std::span<float>, std::size_t) override { return {}; }
};

class LocalSteps : public RunTest {
 protected:
  config::TrainConfig local(int steps, const char* name) const {
    config::TrainConfig c = config();
    c.update = comm::UpdateKind::local;
    c.local.steps = steps;
    c.steps = 12;
    c.run_dir = path(name);
    return c;
  }

  static std::vector<float> row(const SessionState& state, StateRole role) {
    const auto values = state.blocks.state[role].span<float>();
    return {values.begin(), values.end()};
  }

  static run::Checkpoint last(const config::TrainConfig& config) {
    return run::read_checkpoint(
        run::checkpoint_path(config.run_dir, static_cast<std::uint64_t>(config.steps)));
  }

  /// The "step" of the lines that have `key`.
  static std::vector<int> told(const config::TrainConfig& config, const std::string& key) {
    std::vector<int> steps;
    for (const std::string& line : metrics_with(config, key)) {
      const std::string step = "\"step\":";
      steps.push_back(std::stoi(line.substr(line.find(step) + step.size())));
    }
    return steps;
  }
};

/// With one step between averagings, mean_r(w − lr·(g_r + λw)) = w − lr·(mean_r g_r + λw), and so with momentum, which is linear in
/// the gradient too. The two ways differ by two roundings of w per rank and step, each at most u = 2^-24 of
/// |w|. Momentum amplifies them by at most 1/(1 - 0.9), and a gradient changes by at most L times the change
/// of a weight: over n steps that is n · 2u · 10 · |w| · (1 + lr·L)^n, where (1 + lr·L)^n < 10 for a step
/// that does not diverge.
TEST_F(LocalSteps, OfOneStepAreTheAllReduce) {
  for (const auto kind : {optim::OptimizerKind::sgd, optim::OptimizerKind::momentum}) {
    config::TrainConfig ring = config();
    ring.optimizer.kind = kind;
    ring.lr = 0.01;
    ring.run_dir = path(std::string(to_string(kind)) + "_all_reduce");
    config::TrainConfig own = ring;
    own.update = comm::UpdateKind::local;
    own.local.steps = 1;
    own.run_dir = path(std::string(to_string(kind)) + "_local");
    const auto a = start(ring), b = start(own);
    run(*a);
    run(*b);
    for (const optim::StateRow& kept : a->blocks.state.rows()) {
      const std::vector<float> wanted = row(*a, kept.role), found = row(*b, kept.role);
      double largest = 0.0;
      for (const float w : wanted) largest = std::max(largest, std::abs(static_cast<double>(w)));
      const double tolerance = 4 * 2 * 0x1.0p-24 * 10 * 10 * largest;
      ASSERT_GT(largest, 0.0);
      for (std::size_t i = 0; i < wanted.size(); ++i)
        ASSERT_NEAR(found[i], wanted[i], tolerance) << kept.group << ' ' << i;
    }
    for (std::size_t step = 0; step < 4; ++step) {
      EXPECT_NEAR(b->blocks.records[step].cross_entropy, a->blocks.records[step].cross_entropy, 1e-5) << step;
      EXPECT_NEAR(b->blocks.records[step].decay_term, a->blocks.records[step].decay_term, 1e-5) << step;
      EXPECT_EQ(b->blocks.records[step].samples, 12.0);
    }
  }
}

/// Two averagings of three steps, worked out in double from steps that each rank takes alone.
TEST_F(LocalSteps, GoOnFromWhatIsMadeOfAllRanksMoves) {
  constexpr int kSteps = 3, kRounds = 2;
  for (const auto outer : {optim::OuterKind::average, optim::OuterKind::nesterov}) {
    SCOPED_TRACE(to_string(outer));
    config::TrainConfig c = local(kSteps, to_string(outer).data());
    c.steps = kSteps * kRounds;
    c.optimizer.kind = optim::OptimizerKind::momentum;
    c.weight_decay = 0.0;  // its gradient has no global batch in it
    c.lr = 0.01;
    c.local.outer = outer;
    const auto run_state = start(c);
    run(*run_state);

    config::TrainConfig own = c;
    own.update = comm::UpdateKind::all_reduce;
    own.local = {};
    own.lr = c.lr * world().size();  // its loss is divided by the global batch, not by that of its rank
    own.run_dir = path("alone");
    const auto state = start(own);
    comm::AllReduceUpdate alone(std::make_unique<Alone>(), state->device.tower->layout(), {own.bucket_mib});
    alone.allocate(step::control_layout(state->plan, state->device).floats());
    const auto step = step::plan_step({state->plan, state->device, state->blocks, alone}, {});
    const std::size_t trained = state->device.tower->layout().trained_floats;
    const auto weights = state->blocks.state[StateRole::weights].span<float>();
    // The program's momenta sum gradients divided by the global batch, so they are 1/`ranks` of the other
    // run's.
    const auto momenta = state->blocks.state[StateRole::momentum].span<float>();
    const double ranks = world().size();
    std::vector<double> ema(trained), v(trained);
    for (std::size_t i = 0; i < trained; ++i) ema[i] = weights[i];
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<float> before(weights.begin(), weights.end());
      double kept = 1.0;
      for (int i = 0; i < kSteps; ++i) {
        step->replay();
        kept *= optim::ema_decay(own.ema_decay, static_cast<std::uint64_t>(round * kSteps + i));
      }
      std::vector<double> moves(2 * trained);
      for (std::size_t i = 0; i < trained; ++i) {
        moves[i] = static_cast<double>(before[i]) - static_cast<double>(weights[i]);
        moves[trained + i] = static_cast<double>(momenta[i]);
      }
      world().sum(moves);
      for (std::size_t i = 0; i < trained; ++i) {
        const double delta = moves[i] / ranks;
        v[i] = 0.9 * v[i] + delta;
        const double by = outer == optim::OuterKind::average ? delta : 0.7 * (delta + 0.9 * v[i]);
        const double w = static_cast<double>(before[i]) - by;
        ema[i] = kept * ema[i] + (1.0 - kept) * w;
        weights[i] = static_cast<float>(w);
        momenta[i] = static_cast<float>(moves[trained + i] / ranks);
      }
    }
    const double tolerance = 3e-6;  // roundings of six steps of weights below 1, through momentum
    const std::vector<float> now = row(*run_state, StateRole::weights),
                             averages = row(*run_state, StateRole::average);
    for (std::size_t i = 0; i < trained; ++i) {
      ASSERT_NEAR(now[i], weights[i], tolerance) << i;
      ASSERT_NEAR(averages[i], ema[i], tolerance) << i;
    }
    const std::vector<float> found = row(*run_state, StateRole::momentum);
    for (std::size_t i = 0; i < trained; ++i)
      ASSERT_NEAR(found[i], ranks * static_cast<double>(momenta[i]), 1e-4) << i;
    if (outer == optim::OuterKind::average) continue;
    const std::vector<float> gathered = row(*run_state, StateRole::outer_momentum);
    for (std::size_t i = 0; i < trained; ++i) ASSERT_NEAR(gathered[i], v[i], tolerance) << i;
  }
}

TEST_F(LocalSteps, LeaveTheSameBitsOnEveryRankFromEveryRunner) {
  std::vector<float> first;
  for (const auto runner :
       {engine::RunnerKind::lanes, engine::RunnerKind::serial, engine::RunnerKind::audit}) {
    config::TrainConfig c = local(2, ("runner" + std::to_string(static_cast<int>(runner))).c_str());
    c.runner = runner;
    c.accumulate = 12 / world().size() % 2 == 0 ? 2 : 1;
    c.batch_size /= c.accumulate;
    c.optimizer.kind = optim::OptimizerKind::nesterov;
    c.local.outer = optim::OuterKind::nesterov;
    c.clip_norm = 0.5;
    c.steps = 4;
    c.check_every = 1;  // all ranks' rows have one hash before every replay
    const auto state = start(c);
    run(*state);
    std::vector<float> all;
    for (const optim::StateRow& kept : state->blocks.state.rows()) {
      const std::vector<float> values = row(*state, kept.role);
      all.insert(all.end(), values.begin(), values.end());
    }
    if (first.empty()) first = all;
    EXPECT_TRUE(all == first);
    std::vector<float> of_rank_zero = all;
    world().broadcast(std::as_writable_bytes(std::span(of_rank_zero)));
    EXPECT_TRUE(all == of_rank_zero);
  }
}

TEST_F(LocalSteps, OfAResidualNetworkHaveTheMeanOfAllRanksStatistics) {
  config::TrainConfig ring = config();
  ring.model = "resnet20";
  ring.augment = data::Augment::crop;
  ring.normalize = data::Normalize::dataset;
  ring.input_size = 8;
  ring.steps = 1;
  ring.lr = 1e-6;
  ring.run_dir = path("all_reduce");
  config::TrainConfig own = ring;
  own.update = comm::UpdateKind::local;
  own.local.steps = 1;
  own.run_dir = path("local");
  const auto a = start(ring), b = start(own);
  run(*a);
  run(*b);
  const std::size_t begin = a->device.tower->layout().running_begin();
  for (const auto role : {StateRole::weights, StateRole::average}) {
    const std::vector<float> wanted = row(*a, role), found = row(*b, role);
    ASSERT_GT(wanted.size(), begin);
    for (std::size_t i = begin; i < wanted.size(); ++i) {
      ASSERT_NEAR(found[i], wanted[i], 4 * 0x1.0p-23 * std::max(1.0f, std::abs(wanted[i]))) << i;
    }
  }
}

TEST_F(LocalSteps, GoOnToTheSameBits) {
  for (const auto outer : {optim::OuterKind::average, optim::OuterKind::nesterov}) {
    config::TrainConfig straight = local(4, (std::string(to_string(outer)) + "_straight").c_str());
    straight.local.outer = outer;
    straight.optimizer.kind = optim::OptimizerKind::adamw;
    straight.lr = 0.001;
    run(straight);
    config::TrainConfig parts = straight;
    parts.run_dir = path(std::string(to_string(outer)) + "_parts");
    stop_ = 1;  // while the first steps run: it waits for the averaging
    expect_agreed(ErrorKind::stopped, "stopped on request at step 4", [&] { run(parts); });
    stop_ = 0;
    run(parts);
    const run::Checkpoint a = last(straight), b = last(parts);
    EXPECT_EQ(run::content_hash(a), run::content_hash(b));
    EXPECT_EQ(a.outer_momentum, outer == optim::OuterKind::nesterov);
    config::TrainConfig other = parts;
    other.local.steps = 6;
    expect_agreed(ErrorKind::checkpoint, "its --local-steps is 4, this one's is 6", [&] { start(other); });
    other = parts;
    other.update = comm::UpdateKind::all_reduce;
    other.local = {};
    expect_agreed(ErrorKind::checkpoint, "its --update is local, this one's is all-reduce or server",
                  [&] { start(other); });
  }
}

TEST_F(LocalSteps, BeginAfterEpochsOfAllReducesAndGoOnToTheSameBits) {
  config::TrainConfig ring = config();
  ring.steps = 3;
  ring.run_dir = path("all_reduce");
  run(ring);
  config::TrainConfig straight = local(4, "straight");
  straight.local.after_epoch = 2.5 / 8.0;  // of eight steps an epoch: from the fourth step on
  straight.steps = 11;
  straight.checkpoint_every = 3;
  straight.keep = 10;
  straight.check_every = 1;
  run(straight);
  expect_agreed(ErrorKind::checkpoint, "its --update is all-reduce or server, this one's is local", [&] {
    config::TrainConfig other = straight;
    other.run_dir = ring.run_dir;
    start(other);
  });
  expect_same_tensors(saved(straight, 3).state[StateRole::weights], last(ring).state[StateRole::weights]);
  EXPECT_FALSE(std::filesystem::exists(run::checkpoint_path(straight.run_dir, 6)));
  for (const std::uint64_t from : {3u, 7u}) {
    config::TrainConfig parts = straight;
    parts.run_dir = path("from_" + std::to_string(from));
    on_rank_zero([&] {
      run::make_folders(parts.run_dir);
      std::filesystem::copy_file(run::checkpoint_path(straight.run_dir, from),
                                 run::checkpoint_path(parts.run_dir, from));
    });
    run(parts);
    EXPECT_EQ(run::content_hash(last(parts)), run::content_hash(last(straight))) << from;
  }
}

TEST_F(LocalSteps, AreToldOfAndSavedAtAveragings) {
  config::TrainConfig c = local(4, "reported");
  c.log_every = 5;
  c.eval_every = 3.0 / 8.0;  // every three steps
  c.checkpoint_every = 7;
  run(c);
  EXPECT_EQ(told(c, "images_per_second"), (std::vector<int>{8, 12}));
  EXPECT_EQ(told(c, "test_accuracy"), (std::vector<int>{4, 8, 12}));
  for (const std::uint64_t step : {7u, 8u, 12u}) {
    EXPECT_EQ(std::filesystem::exists(run::checkpoint_path(c.run_dir, step)), step != 7) << step;
  }
}

TEST_F(LocalSteps, AreOneStepOfTheTimelineWithEveryTaskOnce) {
  config::TrainConfig all = config();
  all.run_dir = path("all_reduce");
  const auto head_of = [](const auto& run) {
    return step::timeline_head(run->plan, *run->blocks.update, run->programs.step->program());
  };
  const report::Timeline ring = head_of(start(all));
  const auto state = start(local(4, "timeline"));
  const report::Timeline head = head_of(state);
  EXPECT_GT(state->programs.step->program().tasks().size(), 3 * ring.tasks.size());
  EXPECT_LT(head.tasks.size(), ring.tasks.size() + 10);
  EXPECT_EQ(head.images_per_rank, 4 * ring.images_per_rank);
  std::set<std::string> names;
  for (const report::TimelineTask& task : head.tasks) {
    EXPECT_TRUE(names.insert(task.name).second) << task.name;
    for (const std::int32_t other : task.after)
      ASSERT_LT(other, static_cast<std::int32_t>(head.tasks.size()));
    if (task.kind != engine::TaskKind::collective) continue;
    ASSERT_EQ(task.after.size(), 1u) << task.name;
    EXPECT_EQ(head.tasks[static_cast<std::size_t>(task.after[0])].name, "moves of weights");
  }
  EXPECT_EQ(names.count("all-reduce of bucket 0"), world().size() > 1 ? 1u : 0u);
  run(*state);
  EXPECT_EQ(state->blocks.records[0].samples, 4 * 12.0);
  EXPECT_EQ(state->blocks.records[2].step, 11u);
}

TEST_F(LocalSteps, OfOneRankThatDivergesEndAllAtTheNextAveraging) {
  config::TrainConfig c = local(4, "diverged");
  const auto state = start(c);
  const model::ParamTable& params = state->plan.network.params;
  for (std::size_t p = 0; p < params.size(); ++p) {
    if (params[p].name != "softmax_linear/weights" || world().rank() + 1 != world().size()) continue;
    const auto& entry = state->device.tower->layout().entries[p];
    float* const weights = state->blocks.state[StateRole::weights].as<float>() + entry.offset;
    std::fill_n(weights, entry.floats, 3e38f);  // finite, but their outputs are not
  }
  expect_agreed(ErrorKind::diverged, "diverged: the loss of step 1 to 4 is", [&] { run(*state); });
  EXPECT_TRUE(run::list_checkpoints(Directory(c.run_dir)).empty());
}

/// Each rank clips its own gradients; the reported norm is that of the moves of the weights.
TEST_F(LocalSteps, TellTheNormOfWhatTheWeightsMoved) {
  config::TrainConfig c = local(4, "norm");
  c.steps = 4;
  c.clip_norm = 0.01;
  const auto state = start(c);
  const std::vector<float> before = row(*state, StateRole::weights);
  run(*state);
  const std::vector<float> after = row(*state, StateRole::weights);
  double squares = 0.0;
  for (std::size_t i = 0; i < state->device.tower->layout().trained_floats; ++i) {
    const double move = static_cast<double>(before[i]) - static_cast<double>(after[i]);
    squares += move * move;
  }
  const double norm = state->blocks.records[0].gradient_norm;
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-3 * norm);
  EXPECT_LT(norm, 4 * c.lr *
                      (c.clip_norm +
                       0.004 * 40));  // four clipped steps, and the decay of weights of a norm below 40
  EXPECT_GT(norm, 0.0);
}

TEST_F(LocalSteps, CatchARankThatDiffersAfterAnAveraging) {
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  config::TrainConfig c = local(4, "differs");
  c.check_every = 4;
  const auto state = start(c);
  if (world().rank() == 1) state->blocks.state[StateRole::weights].as<float>()[1000] += 1e-3f;
  expect_agreed(ErrorKind::desync, "rank 1", [&] { run(*state); });
}

TEST_F(LocalSteps, RefuseALengthThatEndsBetweenAveragings) {
  config::TrainConfig c = local(5, "refused");
  expect_agreed(ErrorKind::usage,
                "--steps 12 does not end with an averaging of --local-steps 5; give 10 or 15",
                [&] { start(c); });
  c.local.after_epoch = 1.0;
  expect_agreed(ErrorKind::usage, "--local-steps 5 from step 9 on (--local-after 1) end after the last step",
                [&] { start(c); });
  c.local.after_epoch = 0.0;
  c.steps = 0;
  c.epochs = 1.5;  // twelve steps: whole rounds of them
  EXPECT_EQ(start(c)->plan.sizes.total_steps, 10u);
}

}  // namespace
}  // namespace cifar_mpi::train
