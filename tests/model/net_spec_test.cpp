#include "cifar_mpi/model/net_spec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/param_table.hpp"
#include "support/contains.hpp"
#include "support/errors.hpp"
#include "support/networks.hpp"

namespace cifar_mpi::model {
namespace {

constexpr Extent kCrop{24, 24, 3};

void expect_refused(const std::vector<Layer>& layers, const std::string& named) {
  expect_error(ErrorKind::usage, {named, "probe"}, [&] { make_net("probe", kCrop, 10, layers); });
}

Linear linear(int outputs, const char* name = "fc") { return {.name = name, .outputs = outputs}; }

TEST(SamePadding, PutsTheOddPlaceAtTheEnd) {
  EXPECT_EQ(same_padding(24, 5, 1), (Padding{24, 2, 2}));
  EXPECT_EQ(same_padding(24, 3, 2), (Padding{12, 0, 1}));
  EXPECT_EQ(same_padding(25, 3, 2), (Padding{13, 1, 1}));
  EXPECT_EQ(same_padding(7, 2, 1), (Padding{7, 0, 1}));
  EXPECT_EQ(same_padding(7, 4, 1), (Padding{7, 1, 2}));
  EXPECT_EQ(same_padding(4, 1, 3), (Padding{2, 0, 0}));
  EXPECT_EQ(same_padding(1, 5, 2), (Padding{1, 2, 2}));
}

TEST(CentredPadding, PutsTheMiddleOnEveryStrideThPlaceFromTheFirst) {
  for (const int kernel : {1, 2, 3, 4, 5, 6}) {
    EXPECT_EQ(centred_padding(9, kernel, 1), same_padding(9, kernel, 1)) << kernel;
  }
  EXPECT_EQ(centred_padding(32, 3, 2), (Padding{16, 1, 0}));
  EXPECT_EQ(centred_padding(33, 3, 2), (Padding{17, 1, 1}));
  EXPECT_EQ(centred_padding(32, 5, 2), (Padding{16, 2, 1}));
  EXPECT_EQ(centred_padding(32, 1, 2), (Padding{16, 0, 0}));
  EXPECT_EQ(centred_padding(7, 1, 3), (Padding{3, 0, 0}));
}

TEST(NetBuilder, PoolsAllPlacesOfAnyShapeAtOnce) {
  for (const Extent in : {Extent{7, 4, 5}, {4, 7, 5}, {3, 3, 8}, {1, 1, 2}}) {
    NetBuilder net("probe", in, 3);
    const Value all = net.global_max_pool(net.image(), "all");
    const NetSpec spec = net.softmax_cross_entropy(net.linear(all, linear(3)));
    EXPECT_EQ(spec.extent(all), (Extent{1, 1, in.channels})) << to_string(in);
    const auto& pool = std::get<MaxPool>(spec.operations.front().layer);
    for (const int n : {in.height, in.width}) {
      const Padding padding = padding_of(pool, n);
      EXPECT_LE(n, pool.kernel - padding.before) << to_string(in) << ": the last place is outside the window";
    }
  }
}

TEST(NetSpec, InfersTheShapesOfTheTutorial) {
  const NetSpec net = make_model("tutorial", kCrop, 10);
  const std::vector<Extent> expected{{24, 24, 64}, {24, 24, 64}, {12, 12, 64}, {12, 12, 64}, {12, 12, 64},
                                     {12, 12, 64}, {12, 12, 64}, {6, 6, 64},   {1, 1, 384},  {1, 1, 384},
                                     {1, 1, 192},  {1, 1, 192},  {1, 1, 10},   {1, 1, 10}};
  ASSERT_EQ(net.operations.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(net.output_of(i), expected[i]) << i;
  EXPECT_EQ(net.input_of(0), kCrop);
  EXPECT_EQ(net.input_of(8), (Extent{6, 6, 64}));
}

TEST(NetSpec, RoundsPooledExtentsUp) {
  const NetSpec net =
      make_net("odd", {25, 7, 2}, 5, {MaxPool{"pool", 3, 2}, linear(5), SoftmaxCrossEntropy{}});
  EXPECT_EQ(net.output_of(0), (Extent{13, 4, 2}));
}

TEST(NetSpec, LeavesOutWindowsBeyondTheImageWhereLayersAreValid) {
  const Conv2d conv{.name = "c", .out_channels = 4, .kernel = 2, .valid = true};
  const NetSpec net =
      make_net("valid", {32, 7, 3}, 5, {conv, MaxPool{"pool", 2, 2, true}, linear(5), SoftmaxCrossEntropy{}});
  EXPECT_EQ(net.output_of(0), (Extent{31, 6, 4}));
  EXPECT_EQ(net.output_of(1), (Extent{15, 3, 4}));
  EXPECT_EQ(net.operations[0].forward.nominal, 2.0 * 12 * 4 * 31 * 6);
  EXPECT_EQ(net.operations[0].forward.in_image, net.operations[0].forward.nominal);
  EXPECT_EQ(padding_of(MaxPool{"p", 3, 2, true}, 2), (Padding{0, 0, 0}));
  const SoftmaxCrossEntropy loss;
  Conv2d wide = conv;
  wide.kernel = 25;
  expect_refused({wide, linear(10), loss}, "layer 1 (c) has a window of 25 without padding");
  expect_refused({MaxPool{"p", 25, 2, true}, linear(10), loss}, "layer 1 (p) has a window of 25");
  Conv2d whitening = conv;
  whitening.filters = Filters::whitening;
  expect_refused({whitening, linear(10), loss}, "layer 1 (c) whitens patches of 12 values, which needs 24");
  expect_refused({Pointwise{PointwiseKind::scale, NAN}, linear(10), loss}, "layer 1 (scale) needs a finite");
}

TEST(NetSpec, NamesTheLayerThatDoesNotFit) {
  const SoftmaxCrossEntropy loss;
  expect_refused({Conv2d{.name = "c1", .out_channels = 0, .kernel = 3}, linear(10), loss}, "layer 1 (c1)");
  expect_refused({Conv2d{.name = "c1", .out_channels = 4, .kernel = 0}, linear(10), loss}, "layer 1 (c1)");
  expect_refused({Relu{}, MaxPool{"p", 3, 0}, linear(10), loss}, "layer 2 (p)");
  expect_refused({LocalResponseNorm{.name = "n", .depth_radius = -1}, linear(10), loss}, "layer 1 (n)");
  expect_refused({LocalResponseNorm{.name = "n", .depth_radius = 1, .bias = 0.0f}, linear(10), loss},
                 "layer 1 (n)");
  expect_refused({linear(0), loss}, "layer 1 (fc)");
  expect_refused({linear(7), loss}, "layer 2 (softmax cross-entropy)");
  expect_refused({linear(10, "a"), linear(10, "a"), loss}, "layer 2 (a)");
  expect_refused({linear(10, ""), loss}, "name");
  expect_refused({Linear{.name = "fc", .outputs = 10, .weight_stddev = -1.0f}, loss}, "layer 1 (fc)");
}

TEST(NetSpec, RefusesASumOfDifferentExtentsAndAValueThatNobodyReads) {
  const auto text_of = [](const auto& build) {
    NetBuilder net("probe", {8, 8, 2}, 10);
    return refusal(ErrorKind::usage, [&] { build(net); });
  };
  const Conv2d conv{.name = "c1", .out_channels = 4, .kernel = 3};
  EXPECT_EQ(text_of([&](NetBuilder& net) { net.add(net.image(), net.conv(net.image(), conv), {"sum"}); }),
            "model probe: layer 2 (sum) needs two inputs of one extent, found 8x8x2 and 8x8x4");
  EXPECT_EQ(text_of([&](NetBuilder& net) {
              net.conv(net.image(), conv);
              net.softmax_cross_entropy(net.linear(net.image(), linear(10)));
            }),
            "model probe: no operation reads the output of c1");
}

TEST(NetSpec, KnowsWhoReadsAValueAndWhetherItWantsAGradient) {
  NetBuilder builder("branches", {4, 4, 3}, 10);
  const Value image = builder.image();
  const Value frozen = builder.conv(image, {.name = "a", .out_channels = 3, .kernel = 1, .frozen = true});
  const Value sum = builder.add(frozen, image, {"sum"});
  const Value twice = builder.add(sum, sum, {"twice"});
  const Value x = builder.conv(twice, {.name = "b", .out_channels = 3, .kernel = 1});
  const Value y = builder.add(builder.relu(x), twice, {"skip"});
  const NetSpec net = builder.softmax_cross_entropy(builder.linear(y, linear(10)));
  const auto readers = readers_of(net);
  EXPECT_EQ(readers[image.id], (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(readers[sum.id], (std::vector<std::size_t>{2, 2}));
  EXPECT_EQ(readers[twice.id], (std::vector<std::size_t>{3, 5}));
  const std::vector<bool> wants = wants_gradient(net);
  for (const Value value : {image, frozen, sum, twice}) EXPECT_FALSE(wants[value.id]) << value.id;
  for (const Value value : {x, y, net.logits()}) EXPECT_TRUE(wants[value.id]) << value.id;
  // forward thrice; weight gradients of b and fc; the data gradient of fc alone
  const double conv = 2.0 * 16 * 3 * 3, fc = 2.0 * 48 * 10;
  EXPECT_EQ(training_flops(net).nominal, conv + 2 * conv + 3 * fc);
}

TEST(NetSpec, WantsNoGradientForParametersThatNoLongerTrain) {
  const NetSpec net = make_model("fast94", {32, 32, 3}, 10);
  const auto want = [&](std::uint64_t done) {
    const std::vector<bool> wants = wants_gradient(net, done);
    return std::count(wants.begin(), wants.end(), true);
  };
  EXPECT_EQ(want(6), want(0));
  EXPECT_EQ(want(7), want(0) - 2) << "the outputs of the whitening and of its GELU";
  const double left_out = net.operations[0].forward.nominal + net.operations[2].forward.nominal;
  EXPECT_EQ(training_flops(net, 6).nominal, training_flops(net).nominal);
  EXPECT_EQ(training_flops(net, 7).nominal, training_flops(net).nominal - left_out);
}

TEST(NetSpec, KnowsTheLayerThatGivesTheLogits) {
  for (const ModelInfo& model : catalog()) {
    const NetSpec net = make_model(model.name, kCrop, 10), more = make_model(model.name, kCrop, 11);
    const std::string classifier = std::string(classifier_of(net)) + "/";
    EXPECT_GT(classifier.size(), 1u) << model.name;
    const ParamTable few = make_param_table(net), many = make_param_table(more);
    for (std::size_t p = 0; p < few.size(); ++p)
      EXPECT_EQ(few[p].shape == many[p].shape, !few[p].name.starts_with(classifier)) << few[p].name;
  }
  EXPECT_EQ(classifier_of(make_net("probe", kCrop, 3,
                                   {Conv2d{"conv", 3, 1}, GlobalAvgPool{"pool"}, SoftmaxCrossEntropy{}})),
            "");
}

TEST(NetSpec, RefusesInputsAndClassCountsThatMakeNoSense) {
  const auto layers = [](int classes) { return std::vector<Layer>{linear(classes), SoftmaxCrossEntropy{}}; };
  const auto made = [&](Extent input, int classes) { make_net("probe", input, classes, layers(classes)); };
  expect_error(ErrorKind::usage, {}, [&] { made({0, 24, 3}, 10); });
  for (const int classes : {1, 256}) expect_error(ErrorKind::usage, {}, [&] { made(kCrop, classes); });
  EXPECT_NO_THROW(made(kCrop, 255));
}

TEST(NetSpec, CountsTheFlopsOfTheTutorial) {
  const NetSpec net = make_model("tutorial", kCrop, 10);
  std::vector<Flops> flops;
  for (const Operation& operation : net.operations) flops.push_back(operation.forward);
  // Per axis, 24·5 − 6 = 114 of conv1's 120 taps are inside and 12·5 − 6 = 54 of conv2's 60.
  EXPECT_EQ(flops[0].nominal, 2.0 * 120 * 120 * 3 * 64);
  EXPECT_EQ(flops[0].in_image, 2.0 * 114 * 114 * 3 * 64);
  EXPECT_EQ(flops[4].nominal, 2.0 * 60 * 60 * 64 * 64);
  EXPECT_EQ(flops[4].in_image, 2.0 * 54 * 54 * 64 * 64);
  EXPECT_EQ(flops[8].nominal, 2.0 * 2304 * 384);
  EXPECT_EQ(flops[1].nominal, 0.0);
  double nominal = 0.0;
  for (const Flops& layer : flops) nominal += layer.nominal;
  EXPECT_NEAR(nominal, 36.9e6, 0.05e6);
}

TEST(NetSpec, CountsNoDataGradientForTheFirstLayerWithWeights) {
  const Flops tutorial = training_flops(make_model("tutorial", kCrop, 10));
  EXPECT_NEAR(tutorial.nominal, 105.3e6, 0.05e6);
  EXPECT_EQ(tutorial.in_image, 2.0 * 4990464 + 3.0 * (23887872 + 1769472 + 147456 + 3840));  // 87.4 MFLOP
  const NetSpec small =
      make_net("small", {4, 4, 1}, 3, {Relu{}, linear(5, "a"), linear(3, "b"), SoftmaxCrossEntropy{}});
  EXPECT_EQ(training_flops(small).nominal, 2.0 * 2 * 16 * 5 + 3.0 * 2 * 5 * 3);
}

TEST(Catalog, HoldsTheTutorialForAnyImageAndClasses) {
  const auto models = catalog();
  EXPECT_TRUE(std::any_of(models.begin(), models.end(), [](const ModelInfo& info) {
    return info.name == "tutorial" && !info.sentence.empty();
  }));
  EXPECT_EQ(make_model("tutorial", {24, 24, 1}, 7).values.back(), (Extent{1, 1, 7}));
  EXPECT_EQ(make_model("tutorial", {32, 20, 4}, 100).output_of(7), (Extent{8, 5, 64}));
}

TEST(Catalog, HoldsTheResidualNetworksOfThePapersSizes) {
  struct Known {
    const char* name;
    std::int64_t params;
    std::int64_t running;
    double mflop;  // forward, multiply-adds of convolutions and the linear layer twice
  };
  // 269 722 and 11 173 962 parameters are the published numbers; 40.8 and 555.4 million multiply-adds are what
  // common counters print.
  for (const Known& known :
       {Known{"resnet20", 269'722, 1'376, 2 * 40.55}, Known{"resnet18", 11'173'962, 9'600, 2 * 555.42}}) {
    const NetSpec net = make_model(known.name, {32, 32, 3}, 10);
    const ParamTable table = make_param_table(net);
    EXPECT_EQ(param_count(table), known.params) << known.name;
    std::int64_t running = 0;
    for (const Param& param : table) running += param.role == ParamRole::running ? param.shape.count() : 0;
    EXPECT_EQ(running, known.running) << known.name;
    double flops = 0.0;
    for (const Operation& operation : net.operations) flops += operation.forward.nominal;
    EXPECT_NEAR(flops * 1e-6, known.mflop, 0.01 * known.mflop) << known.name;
    EXPECT_EQ(net.extent(net.logits()), (Extent{1, 1, 10}));
  }
}

TEST(Summary, HasInItsColumnOfParametersWhatItsTotalSays) {
  for (const char* name : {"tutorial", "resnet20", "fast94"}) {  // the last two have running statistics
    const NetSpec net = make_model(name, {32, 32, 3}, 10);
    const std::string text = summary(net), title = "parameters";
    std::istringstream lines(text);
    std::size_t column = std::string::npos;
    std::int64_t sum = 0;
    for (std::string line; std::getline(lines, line) && !line.starts_with(title);) {
      if (column == std::string::npos) {
        column = line.find(title);
      } else if (line.size() > column) {
        std::int64_t count = 0;
        std::istringstream(line.substr(column, title.size())) >> count;
        sum += count;
      }
    }
    EXPECT_TRUE(contains(text, concat("\nparameters: ", sum, ","))) << sum << '\n' << text;
  }
}

TEST(Catalog, HoldsTheNetworkOfFewEpochs) {
  const NetSpec net = make_model("fast94", {32, 32, 3}, 10);
  const ParamTable table = make_param_table(net);
  EXPECT_EQ(param_count(table), 1'971'640);
  // 681 MFLOP of the filters' training and 27 of the gradient that the biases of the whitening need, as counted for the
  // published network, and a forward and a weight-gradient pass of the whitening, 0.55 each
  EXPECT_NEAR(training_flops(net).nominal * 1e-6, 681.0 + 27.0, 2.0);
  EXPECT_NEAR(training_flops(net).in_image * 1e-6, 582.0 + 26.0, 3.0);
  // side of the output, kernel, channels; a place computes 2 · kernel² · in · out
  double all = 2.0 * 256 * 10;
  const double whitening = 2.0 * 31 * 31 * (2 * 2 * 3) * 24, first = 2.0 * 31 * 31 * (3 * 3 * 24) * 64;
  for (const double conv :
       {whitening, first, 2.0 * 15 * 15 * (9 * 64) * 64, 2.0 * 15 * 15 * (9 * 64) * 256,
        2.0 * 7 * 7 * (9 * 256) * 256, 2.0 * 7 * 7 * (9 * 256) * 256, 2.0 * 3 * 3 * (9 * 256) * 256})
    all += conv;
  EXPECT_EQ(training_flops(net).nominal, 3 * all - whitening) << "no gradient of the images";
  EXPECT_EQ(training_flops(net, 7).nominal, 3 * all - 2 * whitening - first);
  EXPECT_TRUE(contains(summary(net),
                       "236.3 MFLOP forward, 681.2 MFLOP a training step, 708.3 in the first 7 steps ("))
      << summary(net);
  std::vector<std::string> frozen;
  for (const Param& param : table) {
    if (param.role == ParamRole::frozen) frozen.push_back(param.name);
    EXPECT_EQ(param.steps, param.name == "whitening/biases" ? 7u : 0u) << param.name;
  }
  EXPECT_EQ(frozen, std::vector<std::string>{"whitening/weights"});
  EXPECT_EQ(net.extent(net.logits()), (Extent{1, 1, 10}));
  for (const int side : {24, 28, 16}) EXPECT_NO_THROW(make_model("fast94", {side, side, 3}, 10)) << side;
  expect_error(ErrorKind::usage, {"(pool3) has a window of 2 without padding"}, [] {
    make_model("fast94", {8, 8, 3}, 10);
  });
}

TEST(Catalog, NamesTheChoicesForAnUnknownModel) {
  expect_error(ErrorKind::usage, {"\"alexnet\"", "tutorial"}, [&] { make_model("alexnet", kCrop, 10); });
}

}  // namespace
}  // namespace cifar_mpi::model
