#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/net_builder.hpp"
#include "reference/reference.hpp"
#include "step/hidden_matrices.hpp"
#include "support/errors.hpp"
#include "train/run_fixture.hpp"

/// What --optimizer muon makes of the summed gradients of a step.
namespace cifar_mpi::train {
namespace {

using Muon = RunTest;

std::vector<run::NamedTensor> tensors_of(const SessionState& state, const Buffer& block) {
  return evaluation::export_block(*state.device.backend, *state.device.tower, state.plan.network.params,
                                  block);
}

/// The first step, from the gradients that the ranks summed, in the logical order of the tensors.
TEST_F(Muon, MovesEachRoleAsTheDoubleReferenceHasIt) {
  config::TrainConfig c = config();
  c.steps = 1;
  c.lr = 0.125;
  c.optimizer.kind = optim::OptimizerKind::muon;
  c.optimizer.bias_rate = 0.5;
  c.optimizer.ends_rate = 0.25;
  c.bucket_mib = 0.5;
  const auto state = start(c);
  const model::ParamTable& params = state->plan.network.params;
  const Buffer& weights = state->blocks.state[optim::StateRole::weights];
  const std::vector<run::NamedTensor> before = tensors_of(*state, weights);
  run(*state);
  const std::vector<run::NamedTensor> after = tensors_of(*state, weights);
  const std::span<const float> grads = state->blocks.update->block().grads();
  for (std::size_t p = 0; p < params.size(); ++p) {
    const std::string& name = params[p].name;
    SCOPED_TRACE(name);
    if (name == "local3/weights") continue;  // 2304 x 384 takes seconds in double
    const auto& entry = state->device.layout.entries[p];
    std::vector<float> gradient(before[p].values.size());
    state->device.tower->to_logical(p, grads.subspan(entry.offset, entry.floats), gradient);
    std::vector<double> move(gradient.begin(), gradient.end());
    const bool vector = !name.ends_with("/weights");
    const bool hidden = name == "conv2/weights" || name == "local4/weights";
    const double decay = static_cast<double>(params[p].weight_decay);
    const double rate = vector ? 0.5 : hidden ? 0.125 : 0.25;
    for (std::size_t i = 0; i < move.size(); ++i) {
      if (!hidden) move[i] += decay * static_cast<double>(before[p].values[i]);
      move[i] *= hidden ? 1.95 : 1.9;  // of Nesterov's first step
    }
    const std::size_t out = name == "conv2/weights" ? 64 : 192;
    double worst = 0.0;
    if (hidden) move = reference::muon_move(move, move.size() / out, out);
    for (std::size_t i = 0; i < move.size(); ++i) {
      const double w = static_cast<double>(before[p].values[i]);
      if (hidden) move[i] += decay * w;
      worst = std::max(worst, std::abs(static_cast<double>(after[p].values[i]) - (w - rate * move[i])));
    }
    // Three iterations multiply errors by at most 3.45 each; those of sums of up to 1600 terms below 1 are sqrt(1600)
    // units. Other weights are rounded a few times.
    const double unit = 0x1.0p-24;
    EXPECT_LE(worst, rate * (hidden ? 41.0 * 4.0 * 40.0 : 16.0) * unit);
    EXPECT_NE(after[p].values, before[p].values);
  }
}

/// The bits are the same if one rank computes a matrix or all do, and after resuming with the other choice.
TEST_F(Muon, HasTheSameBitsWhoeverComputesTheMatrices) {
  if (world().size() == 1) return;  // which has them all
  config::TrainConfig c = config();
  c.lr = 0.01;
  c.steps = 3;
  c.optimizer.kind = optim::OptimizerKind::muon;
  c.optimizer.normalize_every = 2;
  c.bucket_mib = 0.5;
  struct Case {
    const char* name;
    void (*change)(config::TrainConfig&);
  };
  for (const Case& way :
       {Case{"plain", [](config::TrainConfig&) {}},
        {"bf16", [](auto& other) { other.precision = engine::Precision::bf16; }},
        {"blocking", [](auto& other) { other.overlap = comm::Overlap::off; }},
        {"clipped", [](auto& other) { other.clip_norm = 0.5; }},
        {"rounded", [](auto& other) { other.all_reduce = "ring", other.wire = comm::Wire::bf16; }},
        {"synced", [](auto& other) { other.model = "resnet20", other.sync_batch_norm = true; }},
        {"reproducible", [](auto& other) { other.reproducible = true, other.micro_shards = 4; }}}) {
    SCOPED_TRACE(way.name);
    config::TrainConfig off = c;
    way.change(off);
    if (off.reproducible && world().size() == 3) continue;
    off.share_matrices = comm::Share::off;
    off.run_dir = path(std::string(way.name) + "_off");
    const auto apart = rows_after(off);
    config::TrainConfig on = off;
    on.share_matrices = comm::Share::on;
    on.run_dir = path(std::string(way.name) + "_on");
    on.steps = 2;
    const auto shared = start(on);
    EXPECT_FALSE(shared->blocks.update->rank_sums().empty());
    run(*shared);
    for (const auto share : {comm::Share::off, comm::Share::on}) {
      config::TrainConfig rest = on;
      rest.share_matrices = share;
      rest.run_dir = path(concat(way.name, "_rest_", to_string(share)));
      rest.steps = 3;
      on_rank_zero(
          [&] { std::filesystem::copy(on.run_dir, rest.run_dir, std::filesystem::copy_options::recursive); });
      EXPECT_EQ(rows_after(rest), apart);
    }
  }
}

TEST_F(Muon, HasEachMatrixOnOneRank) {
  const auto matrix = [](std::int64_t rest, std::int64_t out) {
    return engine::Matrix{"m", 0, 0, rest, out, nullptr};
  };
  const std::vector<engine::Matrix> matrices = {matrix(24, 64),    matrix(64, 576),   matrix(576, 256),
                                                matrix(2304, 256), matrix(256, 2304), matrix(2304, 256)};
  EXPECT_EQ(step::owners_of(matrices, 1), std::vector<int>(6, 0));
  EXPECT_EQ(step::owners_of(matrices, 2), (std::vector<int>{1, 1, 1, 0, 1, 0}));
  EXPECT_EQ(step::owners_of(matrices, 3), (std::vector<int>{2, 1, 0, 0, 1, 2}));
  EXPECT_EQ(step::owners_of(matrices, 8), (std::vector<int>{5, 4, 3, 0, 1, 2}));
  config::TrainConfig c = config();
  c.optimizer.kind = optim::OptimizerKind::muon;
  c.share_matrices = comm::Share::on;
  const auto state = start(c);
  int computed = 0;
  for (const engine::Task& task : state->programs.step->program().tasks())
    if (task.name.starts_with("muon scatter") && task.reads.size() > 1) ++computed;
  int all = 0;
  for (const int of_rank : world().gather(computed)) all += of_rank;
  EXPECT_EQ(all, 3);
  if (world().size() > 1) {
    EXPECT_LT(computed, 3);
  }
}

TEST_F(Muon, RefusesANetworkWithoutAHiddenMatrix) {
  evaluation::Network network;
  model::NetBuilder net("shallow", {8, 8, 3}, 3);
  const model::Value hidden = net.linear(net.image(), {.name = "first", .outputs = 4});
  network.net = net.softmax_cross_entropy(net.linear(hidden, {.name = "last", .outputs = 3}));
  network.params = model::make_param_table(network.net);
  expect_error(ErrorKind::usage, {"shallow has no trained weights between"},
               [&] { step::require_hidden_matrices(network); });
}

}  // namespace
}  // namespace cifar_mpi::train
