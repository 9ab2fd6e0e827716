#include "cifar_mpi/model/param_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/model/net_builder.hpp"

namespace cifar_mpi::model {
namespace {

ParamTable tutorial_table() { return make_param_table(make_model("tutorial", {24, 24, 3}, 10)); }

std::vector<float> initial(const Param& param, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(param.shape.count()));
  fill_initial(param, seed, values);
  return values;
}

TEST(ParamTable, FollowsTheOrderInWhichBackwardFinishes) {
  const std::vector<std::string> expected{
      "softmax_linear/weights", "softmax_linear/biases", "local4/weights", "local4/biases", "local3/weights",
      "local3/biases",          "conv2/weights",         "conv2/biases",   "conv1/weights", "conv1/biases"};
  std::vector<std::string> names;
  for (const Param& param : tutorial_table()) names.push_back(param.name);
  EXPECT_EQ(names, expected);
}

TEST(ParamTable, HasTensorFlowsShapes) {
  const ParamTable table = tutorial_table();
  EXPECT_EQ(table[0].shape, (Shape{192, 10}));
  EXPECT_EQ(table[1].shape, (Shape{10}));
  EXPECT_EQ(table[4].shape, (Shape{2304, 384}));
  EXPECT_EQ(table[6].shape, (Shape{5, 5, 64, 64}));
  EXPECT_EQ(table[8].shape, (Shape{5, 5, 3, 64}));
  EXPECT_EQ(table[8].dims, "[height, width, in, out]");
  EXPECT_EQ(table[4].dims, "[in, out]");
  EXPECT_EQ(table[5].dims, "[out]");
}

TEST(ParamTable, TellsHiddenMatricesFromBothEndsAndFromVectors) {
  const ParamTable table = tutorial_table();
  for (std::size_t p = 0; p < table.size(); ++p) {
    const std::string& name = table[p].name;
    const bool ends = name == "conv1/weights" || name == "softmax_linear/weights";
    const RateRole wanted = !name.ends_with("/weights") ? RateRole::vector
                            : ends                      ? RateRole::ends
                                                        : RateRole::hidden_matrix;
    EXPECT_EQ(rate_role(table, p), wanted) << name;
  }
}

TEST(ParamTable, CountsTheTutorialsParameters) {
  EXPECT_EQ(param_count(tutorial_table()), 1068298);
  const auto other = make_param_table(make_model("tutorial", {24, 24, 1}, 7));
  EXPECT_EQ(param_count(other), 1068298 - 2 * 5 * 5 * 64 - 3 * (192 + 1));
}

TEST(ParamTable, CarriesTheTutorialsInitialValuesAndDecay) {
  const ParamTable table = tutorial_table();
  const auto find = [&](const char* name) {
    return *std::find_if(table.begin(), table.end(), [&](const Param& p) { return p.name == name; });
  };
  EXPECT_EQ(find("conv1/weights").stddev, 0.05f);
  EXPECT_EQ(find("conv2/weights").stddev, 0.05f);
  EXPECT_EQ(find("local3/weights").stddev, 0.04f);
  EXPECT_EQ(find("local4/weights").stddev, 0.04f);
  EXPECT_EQ(find("softmax_linear/weights").stddev, 1.0f / 192.0f);
  EXPECT_EQ(find("conv1/biases").constant, 0.0f);
  for (const char* name : {"conv2/biases", "local3/biases", "local4/biases"}) {
    EXPECT_EQ(find(name).constant, 0.1f) << name;
  }
  EXPECT_EQ(find("softmax_linear/biases").constant, 0.0f);
  for (const Param& param : table) {
    const bool decays = param.name == "local3/weights" || param.name == "local4/weights";
    EXPECT_EQ(param.weight_decay, decays ? 0.004f : 0.0f) << param.name;
  }
}

TEST(ParamTable, NumbersTheTensorsInForwardOrder) {
  const ParamTable table = tutorial_table();
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::size_t layer_from_front = (table.size() - 1 - i) / 2;
    const std::size_t within = i % 2;  // weights first, in either direction
    EXPECT_EQ(table[i].seed_index, 2 * layer_from_front + within) << table[i].name;
  }
}

TEST(ParamTable, PointsAtTheLayerOfEachParameter) {
  const NetSpec net = make_model("tutorial", {24, 24, 3}, 10);
  const ParamTable table = make_param_table(net);
  EXPECT_EQ(net.operations[table[8].operation].name, "conv1");
  EXPECT_EQ(net.operations[table[7].operation].name, "conv2");
  EXPECT_EQ(net.operations[table[0].operation].name, "softmax_linear");
}

TEST(ParamTable, PutsFrozenParametersAfterTrainedOnesAndStatisticsLast) {
  NetBuilder net("bn", {4, 4, 3}, 5);
  Value x = net.batch_norm(net.image(), {.name = "a", .momentum = 0.75f, .weight_decay = 0.5f});
  x = net.batch_norm(x, {.name = "b", .frozen = true});
  const NetSpec spec = net.softmax_cross_entropy(net.linear(x, {"l", 5}));
  std::vector<std::string> names;
  const ParamTable table = make_param_table(spec);
  for (const Param& param : table) names.push_back(param.name);
  EXPECT_EQ(names, (std::vector<std::string>{"l/weights", "l/biases", "a/scale", "a/biases", "b/scale",
                                             "b/biases", "b/mean", "b/variance", "a/mean", "a/variance"}));
  const std::vector<std::size_t> own = params_of(table, 0);
  ASSERT_EQ(own.size(), 4u);
  EXPECT_EQ(table[own[0]].part, ParamPart::scale);
  EXPECT_EQ(table[own[0]].constant, 1.0f);
  EXPECT_EQ(table[own[0]].weight_decay, 0.5f);
  EXPECT_EQ(table[own[1]].part, ParamPart::biases);
  EXPECT_EQ(table[own[1]].constant, 0.0f);
  EXPECT_EQ(table[own[2]].part, ParamPart::mean);
  EXPECT_EQ(table[own[2]].rate_factor, 0.25f);
  EXPECT_EQ(table[own[3]].part, ParamPart::variance);
  EXPECT_EQ(table[own[3]].constant, 1.0f);
}

TEST(FillInitial, GivesBiasesTheirConstant) {
  const ParamTable table = tutorial_table();
  EXPECT_EQ(initial(table[3], 7), std::vector<float>(192, 0.1f));
  EXPECT_EQ(initial(table[1], 7), std::vector<float>(10, 0.0f));
}

TEST(FillInitial, IsAFunctionOfSeedTensorAndIndex) {
  const ParamTable table = tutorial_table();
  const std::vector<float> weights = initial(table[8], 7);
  EXPECT_EQ(weights, initial(table[8], 7));
  EXPECT_NE(weights, initial(table[8], 8));
  for (const std::size_t i : {std::size_t{0}, std::size_t{17}, weights.size() - 1}) {
    EXPECT_EQ(weights[i], 0.05f * truncated_normal(7, 0, i));
  }
  std::set<float> firsts;
  for (const Param& param : table) {
    if (param.stddev > 0.0f) firsts.insert(initial(param, 7)[0] / param.stddev);
  }
  EXPECT_EQ(firsts.size(), 5u);  // no two tensors share their numbers
}

TEST(FillInitial, CopiesChannelsWithTheFirstFiltersAndSpreadsTheOthersEvenly) {
  NetBuilder net("identity", {5, 5, 3}, 10);
  const Value x =
      net.conv(net.image(), {.name = "c", .out_channels = 40, .kernel = 3, .filters = Filters::identity});
  const NetSpec spec = net.softmax_cross_entropy(net.linear(x, {"l", 10}));
  const ParamTable table = make_param_table(spec);
  const std::vector<float> filters = initial(table[params_of(table, 0)[0]], 3);
  const float bound = 1.0f / std::sqrt(27.0f);
  double sum = 0.0, squares = 0.0;
  for (std::size_t i = 0; i < filters.size(); ++i) {
    const std::size_t out = i % 40, in = i / 40 % 3, tap = i / 120;
    if (out < 3) {
      EXPECT_EQ(filters[i], tap == 4 && in == out ? 1.0f : 0.0f) << i;
      continue;
    }
    EXPECT_LE(std::abs(filters[i]), bound);
    sum += static_cast<double>(filters[i] / bound);
    squares += static_cast<double>(filters[i] / bound) * static_cast<double>(filters[i] / bound);
  }
  // of 999 numbers uniform in ±1: variance 1/3, that of the square 4/45; five standard errors
  EXPECT_NEAR(sum / 999.0, 0.0, 5.0 * std::sqrt(1.0 / 3.0 / 999.0));
  EXPECT_NEAR(squares / 999.0, 1.0 / 3.0, 5.0 * std::sqrt(4.0 / 45.0 / 999.0));
}

TEST(FillInitial, SpreadsAsTheTruncatedNormalItScales) {
  const std::vector<float> values = initial(tutorial_table()[4], 1);  // local3/weights, 884 736 values
  double sum = 0.0, squares = 0.0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
    ASSERT_LT(std::abs(value), 2.0f * 0.04f);
  }
  const auto n = static_cast<double>(values.size());
  // Cut at 2 the variance is 0.77374 and that of the square 0.8175 (tests/base/random_test.cpp); five
  // standard errors.
  EXPECT_NEAR(sum / n, 0.0, 5.0 * 0.04 * std::sqrt(0.77374 / n));
  EXPECT_NEAR(squares / n, 0.0016 * 0.77374, 5.0 * 0.0016 * std::sqrt(0.8175 / n));
}

}  // namespace
}  // namespace cifar_mpi::model
