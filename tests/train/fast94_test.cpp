#include <algorithm>
#include <string>
#include <vector>

#include "step/hidden_matrices.hpp"
#include "train/run_facts.hpp"
#include "train/run_fixture.hpp"

/// Runs of a network with frozen filters, and with rates and decays of its own.
namespace cifar_mpi::train {
namespace {

using optim::StateRole;

class Fast94 : public RunTest {
 protected:
  config::TrainConfig small_images() const {
    config::TrainConfig c = config();
    c.model = "fast94";
    c.augment = data::Augment::crop;
    c.normalize = data::Normalize::dataset;
    c.input_size = 16;
    c.lr = 0.125;
    c.weight_decay = 0.5;
    return c;
  }
  static std::vector<run::NamedTensor> tensors(const SessionState& state, StateRole role) {
    return evaluation::export_block(*state.device.backend, *state.device.tower, state.plan.network.params,
                                    state.blocks.state[role]);
  }
  static const std::vector<float>& values(const std::vector<run::NamedTensor>& tensors,
                                          const std::string& name) {
    return std::ranges::find(tensors, name, &run::NamedTensor::name)->values;
  }
};

TEST_F(Fast94, HasTheRatesOfMuonInPlaceOfItsOwn) {
  config::TrainConfig c = small_images();
  c.optimizer.kind = optim::OptimizerKind::muon;
  const auto factors = [&](double bias_rate, double ends_rate) {
    c.optimizer.bias_rate = bias_rate;
    c.optimizer.ends_rate = ends_rate;
    step::Plan plan(c, world(), Log(1));
    step::plan_for(plan, data::DatasetFile(c.data).info());
    std::map<std::string, float> found;
    for (const model::Param& param : step::params_with_rates(plan)) found[param.name] = param.rate_factor;
    return found;
  };
  using Factors = std::vector<std::pair<std::string, float>>;
  const auto expect = [](const std::map<std::string, float>& found, const Factors& wanted) {
    for (const auto& [name, factor] : wanted) {
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_EQ(found.at(name), factor) << name;
    }
  };
  // Frozen filters before it make the first trained convolution a hidden one.
  expect(factors(0.5, 0.25), {{"whitening/biases", 4.0f},
                              {"group1_conv1/weights", 1.0f},
                              {"group3_conv2/weights", 1.0f},
                              {"group2_conv1_bn/biases", 4.0f},
                              {"head/weights", 2.0f}});
  expect(factors(0.0, 0.0), {{"whitening/biases", 64.0f},
                             {"group1_conv1/weights", 1.0f},
                             {"group2_conv1_bn/biases", 64.0f},
                             {"head/weights", 605.0f}});
}

TEST_F(Fast94, HasOnlyTheDecayOfItsLastLayerInTheLossOfMuon) {
  config::TrainConfig c = small_images();
  c.optimizer.kind = optim::OptimizerKind::muon;
  c.optimizer.ends_rate = 0.01;
  c.optimizer.bias_rate = 0.01;
  c.steps = 1;
  const auto state = start(c);
  double squares = 0.0;
  const auto before = tensors(*state, StateRole::weights);
  for (const float w : values(before, "head/weights"))
    squares += static_cast<double>(w) * static_cast<double>(w);
  const std::vector<report::WeightLoss> losses =
      weight_losses(state->plan, state->device, state->blocks.state);
  ASSERT_EQ(losses.size(), 1u) << losses.front().layer;
  EXPECT_EQ(losses[0].layer, "head");
  const double wanted = 0.5 * 0.5 * squares;
  EXPECT_NEAR(losses[0].value, wanted, 1e-12 * wanted);
  run(*state);
  EXPECT_NEAR(state->blocks.records[0].decay_term, wanted, 1e-6 * wanted);
}

/// The biases of the whitening train in the first 7 steps. A run with --clip-norm, here without effect, computes their
/// gradients in all steps.
TEST_F(Fast94, LeavesOutTheGradientsOfFrozenBiasesAndKeepsAllOtherBits) {
  config::TrainConfig c = small_images();
  c.optimizer.kind = optim::OptimizerKind::nesterov;
  c.lr = 0.01;
  c.weight_decay = 0.0;
  c.steps = 10;
  c.run_dir = path("frozen");
  const auto state = start(c);
  const step::Plan& plan = state->plan;
  ASSERT_EQ(state->programs.later.size(), 1u);
  EXPECT_EQ(state->programs.later[0].from, 7u);
  const auto has = [&](const std::string& name) {
    return std::ranges::any_of(state->programs.step->program().tasks(),
                               [&](const engine::Task& task) { return task.name == name; });
  };
  const std::string gradients[] = {"whitening weight gradient", "gelu 1 backward"};
  for (const std::string& name : gradients) EXPECT_TRUE(has(name)) << name;
  run(*state);
  EXPECT_TRUE(state->programs.later.empty());
  for (const std::string& name : gradients) EXPECT_FALSE(has(name)) << name;

  EXPECT_EQ(step::program_end(plan, 0), 7u);
  EXPECT_EQ(step::program_end(plan, 7), 10u);
  const model::Flops early = model::training_flops(plan.network.net),
                     late = model::training_flops(plan.network.net, 7);
  const model::Flops whitening = plan.network.net.operations[0].forward,
                     conv = plan.network.net.operations[2].forward;
  EXPECT_DOUBLE_EQ(early.nominal - late.nominal, whitening.nominal + conv.nominal);
  EXPECT_DOUBLE_EQ(step::training_flops(plan).nominal, 12.0 * (7.0 * early.nominal + 3.0 * late.nominal));

  c.run_dir = path("clipped");
  c.clip_norm = 1e9;
  const auto whole = start(c);
  EXPECT_TRUE(whole->programs.later.empty());
  run(*whole);
  for (const auto role : {StateRole::weights, StateRole::average, StateRole::momentum}) {
    const auto found = tensors(*state, role), wanted = tensors(*whole, role);
    for (const run::NamedTensor& tensor : wanted) {
      const bool decays = role == StateRole::momentum && tensor.name == "whitening/biases";
      EXPECT_EQ(values(found, tensor.name) == tensor.values, !decays) << tensor.name;
    }
  }
  for (std::size_t i = 0; i < 10; ++i)
    EXPECT_EQ(state->blocks.records[i].cross_entropy, whole->blocks.records[i].cross_entropy) << i;
  const auto& params = plan.network.params;
  for (std::size_t p = 0; p < params.size(); ++p) {
    if (params[p].name != "whitening/biases") continue;
    const auto& entry = state->device.layout.entries[p];
    const auto grads = state->blocks.update->block().grads().subspan(entry.offset, entry.floats);
    EXPECT_TRUE(std::ranges::all_of(grads, [](float grad) { return grad == 0.0f; }));
  }
}

TEST_F(Fast94, ResumesToTheSameBitsAtAndBesideTheStepThatFreezesBiases) {
  config::TrainConfig c = small_images();
  c.optimizer.kind = optim::OptimizerKind::muon;
  c.optimizer.bias_rate = c.optimizer.ends_rate = 0.01;
  c.lr = 0.01;
  c.image_sizes = {{12, 0.625}, {16}};  // from step 6 on
  c.run_dir = path("uninterrupted");
  c.steps = 9;
  const auto whole = start(c);
  EXPECT_EQ(whole->programs.later.size(), 2u);
  run(*whole);
  for (const int stop : {6, 7, 8}) {
    c.run_dir = path("stopped_" + std::to_string(stop));
    c.steps = stop;
    run(c);
    c.steps = 9;
    if (stop == 7) c.runner = engine::RunnerKind::audit;
    EXPECT_EQ(rows_after(c), rows(*whole)) << stop;
    c.runner = engine::RunnerKind::automatic;
  }
}

/// Neither their weights nor the averages of these move, bit for bit; all others do.
TEST_F(Fast94, KeepsFrozenFiltersThroughAveragings) {
  for (const auto outer : {optim::OuterKind::average, optim::OuterKind::nesterov}) {
    config::TrainConfig c = small_images();
    c.run_dir = path(std::string(to_string(outer)));
    c.lr = 0.01;
    c.update = comm::UpdateKind::local;
    c.local.steps = 2;
    c.local.outer = outer;
    c.optimizer.kind = optim::OptimizerKind::nesterov;
    const auto state = start(c);
    const auto before = tensors(*state, StateRole::weights);
    run(*state);
    for (const auto role : {StateRole::weights, StateRole::average}) {
      const auto after = tensors(*state, role);
      for (const run::NamedTensor& tensor : before) {
        const bool frozen = tensor.name == "whitening/weights";
        EXPECT_EQ(values(after, tensor.name) == tensor.values, frozen) << tensor.name;
      }
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::train
