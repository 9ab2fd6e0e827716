#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/model/net_builder.hpp"
#include "reference/reference.hpp"

namespace cifar_mpi::reference {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

Array random_values(std::size_t count, std::uint64_t seed) {
  Array values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = 2.0 * uniform01(random4(seed, RandomPurpose::synthetic, i, 0)[0]) - 1.0;
  }
  return values;
}

/// Every kind of layer once, small enough to differentiate one parameter at a time; a value is read twice by
/// one layer, another by two, and one layer is frozen.
model::NetSpec small_net(bool batch_norm = true) {
  model::NetBuilder net("small", {6, 5, 2}, 4);
  model::Value x = net.conv(
      net.image(), {.name = "first", .out_channels = 2, .kernel = 1, .weight_stddev = 0.8f, .frozen = true});
  x = net.conv(x, {.name = "conv", .out_channels = 3, .kernel = 3, .weight_stddev = 0.3f, .bias = 0.1f});
  x = net.max_pool(net.relu(x), {"pool", 3, 2});
  const model::Value skip = x;
  x = net.lrn(x, {.name = "lrn", .depth_radius = 1, .bias = 1.0f, .alpha = 0.3f, .beta = 0.75f});
  x = net.add(net.conv(x, {.name = "inner", .out_channels = 3, .kernel = 2, .weight_stddev = 0.3f}), skip,
              {"sum"});
  model::Value wide = net.conv(x, {.name = "strided",
                                   .out_channels = 4,
                                   .kernel = 3,
                                   .stride = 2,
                                   .with_bias = false,
                                   .weight_stddev = 0.3f});
  if (batch_norm) wide = net.batch_norm(wide, {.name = "bn", .epsilon = 0.01f});
  wide = net.add(wide, net.shortcut(x, {"shortcut", 4, 2}), {"wide"});
  if (batch_norm) {
    x = net.add(x, net.batch_norm(x, {.name = "frozen bn", .epsilon = 0.01f, .frozen = true}),
                {"normalized"});
  }
  x = net.add(x, x, {"twice"});
  x = net.linear(
      x, {.name = "hidden", .outputs = 4, .weight_stddev = 0.3f, .bias = 0.1f, .weight_decay = 0.01f});
  x = net.add(x, net.global_avg_pool(wide, {"mean"}), {"joined"});
  return net.softmax_cross_entropy(
      net.linear(net.relu(x), {.name = "out", .outputs = 4, .weight_stddev = 0.3f}));
}

/// The active units and the winning inputs of windows: constant wherever the loss is smooth.
std::vector<Array> pattern(const model::NetSpec& net, const std::vector<Array>& activations, const Array& x,
                           int batch) {
  std::vector<Array> found;
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    const std::size_t source = net.operations[i].inputs[0].id;
    const Array& in = source == 0 ? x : activations[source - 1];
    if (std::holds_alternative<model::Relu>(net.operations[i].layer)) {
      found.push_back(relu_grad_x(in, Array(in.size(), 1.0)));
    } else if (const auto* pool = std::get_if<model::MaxPool>(&net.operations[i].layer)) {
      Array numbers(activations[i].size());
      for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = std::sqrt(static_cast<double>(n + 1));
      found.push_back(pool_grad_x({batch, net.input_of(i), pool->kernel, pool->stride}, in, numbers));
    }
  }
  return found;
}

TEST(ReferenceNetwork, GradientsMatchCentralDifferences) {
  const model::NetSpec net = small_net();
  const model::ParamTable table = model::make_param_table(net);
  constexpr int kBatch = 3;
  constexpr double kGlobalBatch = 7.0, kStep = 1e-4;
  const Array x = random_values(3 * 60, 21);
  const std::uint8_t labels[kBatch] = {3, 255, 0};
  Params params = initial_params(table, 5);
  const LossAndGradients result = loss_and_gradients(net, table, params, x, labels, kBatch, kGlobalBatch);
  const std::vector<Array> smooth_piece = pattern(net, result.activations, x, kBatch);

  const auto loss_at = [&](double& value, double by) {
    const double before = value;
    value = before + by;
    const std::vector<Array> activations = forward(net, params, x, kBatch);
    value = before;
    EXPECT_EQ(pattern(net, activations, x, kBatch), smooth_piece) << "a kink is near: choose other inputs";
    return softmax_cross_entropy(net.classes, activations[net.operations.size() - 2], labels, 1.0).sum /
           kGlobalBatch;
  };
  // The loss is about 0.4 and summed from some 100 terms along the longest path: 8·eps·sqrt(100)·0.4/h is
  // 7e-12; the fourth order term h⁴/30 · f⁽⁵⁾ is below 1e-12 as long as the fifth derivative is below 3e5.
  const double tolerance = 1e-12 + 8.0 * kEpsilon * 10.0 * 0.4 / kStep;
  for (std::size_t p = 0; p < params.size(); ++p) {
    const bool trained = table[p].role == model::ParamRole::trained;
    if (table[p].role == model::ParamRole::running) continue;
    ASSERT_EQ(result.grads[p].size(), trained ? params[p].size() : 0) << table[p].name;
    for (std::size_t i = 0; i < result.grads[p].size(); ++i) {
      double& value = params[p][i];
      const double slope = (8.0 * (loss_at(value, kStep) - loss_at(value, -kStep)) -
                            (loss_at(value, 2.0 * kStep) - loss_at(value, -2.0 * kStep))) /
                           (12.0 * kStep);
      ASSERT_NEAR(slope, result.grads[p][i], tolerance) << table[p].name << " " << i;
    }
  }
}

TEST(ReferenceNetwork, EndsWithProbabilitiesAfterTheLogits) {
  const model::NetSpec net = small_net();
  const Params params = initial_params(model::make_param_table(net), 5);
  const std::vector<Array> activations = forward(net, params, random_values(2 * 60, 3), 2);
  ASSERT_EQ(activations.size(), net.operations.size());
  for (std::size_t i = 0; i < activations.size(); ++i) {
    EXPECT_EQ(activations[i].size(), 2u * static_cast<std::size_t>(net.output_of(i).count()))
        << "layer " << i;
  }
  const Array& logits = activations[activations.size() - 2];
  const Array& probabilities = activations.back();
  EXPECT_NEAR(probabilities[1] / probabilities[0], std::exp(logits[1] - logits[0]), 16.0 * kEpsilon);
}

TEST(ReferenceNetwork, SplitsABatchIntoSums) {
  // Losses of samples add up, and so do gradients with the same global batch, which data parallelism relies
  // on. BatchNorm is an exception, because its statistics are the batch's.
  const model::NetSpec net = small_net(false);
  const model::ParamTable table = model::make_param_table(net);
  const Params params = initial_params(table, 5);
  const Array x = random_values(2 * 60, 3), first(x.begin(), x.begin() + 60), second(x.begin() + 60, x.end());
  const std::uint8_t labels[] = {1, 2};
  const auto run = [&](const Array& images, std::span<const std::uint8_t> part) {
    return loss_and_gradients(net, table, params, images, part, static_cast<int>(part.size()), 2.0);
  };
  const auto both = run(x, labels), a = run(first, {labels, 1}), b = run(second, {labels + 1, 1});
  EXPECT_NEAR(both.loss_sum, a.loss_sum + b.loss_sum, 4.0 * kEpsilon * both.loss_sum);
  for (std::size_t p = 0; p < table.size(); ++p) {
    for (std::size_t i = 0; i < both.grads[p].size(); ++i) {
      // At most 60 terms of size below 1, added in another order.
      EXPECT_NEAR(both.grads[p][i], a.grads[p][i] + b.grads[p][i], 8.0 * kEpsilon * std::sqrt(60.0))
          << table[p].name;
    }
  }
}

TEST(ReferenceNetwork, FallsAlongTheGradientOfTheTutorial) {
  const model::NetSpec net = model::make_model("tutorial", {24, 24, 3}, 10);
  const model::ParamTable table = model::make_param_table(net);
  const Params params = initial_params(table, 1);
  const Array x = random_values(2 * 1728, 4);
  const std::uint8_t labels[] = {3, 8};
  const LossAndGradients result = loss_and_gradients(net, table, params, x, labels, 2, 2.0);
  double square = 0.0;
  for (const Array& grad : result.grads) {
    for (const double g : grad) square += g * g;
  }
  const auto mean_loss = [&](double along) {
    Params moved = params;
    for (std::size_t p = 0; p < moved.size(); ++p) {
      for (std::size_t i = 0; i < moved[p].size(); ++i) moved[p][i] += along * result.grads[p][i];
    }
    const std::vector<Array> activations = forward(net, moved, x, 2);
    return softmax_cross_entropy(10, activations[activations.size() - 2], labels, 1.0).sum / 2.0;
  };
  // The slope along the gradient is its squared length. Kinks crossed within ±t add a share of the order of
  // t; with rounding of the 2.3 large loss over 2t this stays below 1e-4 of it.
  const double t = 1e-7;
  EXPECT_NEAR((mean_loss(t) - mean_loss(-t)) / (2.0 * t) / square, 1.0, 1e-4);
}

TEST(RelativeTolerance, IsThatOfTheLongestSumAndOfAllLayersPassed) {
  model::NetBuilder net("one", {4, 4, 3}, 2);
  const model::Value x = net.conv(net.image(), {.name = "conv", .out_channels = 2, .kernel = 5});
  const model::NetSpec spec = net.softmax_cross_entropy(net.linear(x, {.name = "out", .outputs = 2}));
  const double layers = static_cast<double>(spec.operations.size());
  EXPECT_DOUBLE_EQ(layers_passed(spec), std::sqrt(2.0 * layers));
  EXPECT_DOUBLE_EQ(relative_tolerance(spec, kEpsilon), kEpsilon * std::sqrt(2.0 * layers * 5 * 5 * 3));
}

TEST(RelativeDistance, IsOfTheLengthThatIsWanted) {
  EXPECT_DOUBLE_EQ(relative_distance({3.0, 5.0}, {3.0, 4.0}), 0.2);
  EXPECT_EQ(relative_distance({0.0}, {0.0}), 0.0);
  EXPECT_GT(relative_distance({1e-9}, {0.0}), 1.0);
  EXPECT_EQ(relative_distance({1.0, 0.0}, {1.0}), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace cifar_mpi::reference
