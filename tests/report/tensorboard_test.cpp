#include "report/tensorboard.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>

#include "cifar_mpi/model/net_builder.hpp"
#include "support/contains.hpp"
#include "support/event_reader.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::report {
namespace {

using test::event_files;
using test::Lines;
using test::Reader;
using test::steps_of;

/// A layer with parameters, one without a name, and a value that is read twice.
model::NetSpec small_net() {
  model::NetBuilder net("small", {8, 8, 3}, 10);
  const model::Value x =
      net.relu(net.conv(net.image(), {.name = "first conv", .out_channels = 4, .kernel = 3}));
  const model::Value y = net.add(x, x, {"sum"});
  return net.softmax_cross_entropy(net.linear(y, {.name = "last", .outputs = 10}));
}

engine::StepRecord record_of(double cross_entropy, double decay_term) {
  engine::StepRecord record;
  record.cross_entropy = cross_entropy;
  record.decay_term = decay_term;
  return record;
}

StepReport scalars_at(std::uint64_t step) {
  StepReport r;
  r.step = step;
  r.cross_entropy = 2.0;
  r.decay_term = 0.5;
  r.train_accuracy = 0.25;
  r.learning_rate = 0.125;
  r.seconds_per_step = 0.25;
  r.images_per_second = 512.0;
  return r;
}

/// Events as protoc prints them, without their times; empty, with the test skipped, if it is not installed.
class Protoc : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("protoc --version >/dev/null 2>&1") != 0)
      GTEST_SKIP()
          << "no protoc here (Debian and Ubuntu: protobuf-compiler), so what it makes of event files was "
             "not looked at";
  }

  std::string decoded(const std::string& path) const {
    Message events;
    for (const std::string& record : test::read_records(read_file(path))) events.bytes(1, record);
    write_file(folder_ / "events", events.text());
    const std::string protos = std::string(CIFAR_MPI_SOURCE_ROOT) + "/tests/report";
    const std::string command = "protoc --decode=Events -I '" + protos + "' '" + protos +
                                "/tensorboard.proto' <'" + (folder_ / "events") + "' >'" +
                                (folder_ / "text") + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    const std::string text = read_file(folder_ / "text");
    EXPECT_FALSE(std::regex_search(text, std::regex("(^|\n) *[0-9]+[:{ ]")))
        << "fields of unknown numbers: " << text;
    return std::regex_replace(text, std::regex(" *(wall_time|start_time_secs): [0-9.e+]+\n"), "");
  }

  TempDir folder_;
};

/// `event { … }` with a line for each of `lines`, as protoc indents them.
std::string event_text(std::uint64_t step, const std::string& lines) {
  return "event {\n" + (step > 0 ? "  step: " + std::to_string(step) + "\n" : "") + lines + "}\n";
}

std::string scalar_text(const std::string& tag, const std::string& value) {
  return "    value {\n      tag: \"" + tag + "\"\n      simple_value: " + value + "\n    }\n";
}

TEST_F(Protoc, DecodesHistogramsAndImages) {
  {
    TensorBoard board(folder_ / "board", 0, {small_net(), {}, "none of conv1"}, Log(0));
    StepSummary summary;
    summary.step = 3;
    summary.variables = {{"conv1/weights", {}}};
    board.write(summary);
    InputImages two{{2, 5, 3}, std::vector<std::uint8_t>(60, 7)};
    std::fill(two.pixels.begin() + 30, two.pixels.end(), std::uint8_t{200});
    board.write(4, two);
  }
  const std::string text = decoded(event_files(folder_ / "board").at(0));
  std::string zeros;
  for (int i = 0; i < 720; ++i) zeros += "\\000";
  const std::string histogram =
      "  summary {\n    value {\n      tag: \"conv1/weights\"\n      tensor {\n        dtype: DT_DOUBLE\n"
      "        tensor_shape {\n          dim {\n            size: 30\n          }\n          dim {\n"
      "            size: 3\n          }\n        }\n        tensor_content: \"" +
      zeros +
      "\"\n      }\n      metadata {\n        plugin_data {\n          plugin_name: \"histograms\"\n"
      "          content {\n          }\n        }\n        data_class: DATA_CLASS_TENSOR\n      }\n"
      "    }\n  }\n";
  EXPECT_TRUE(contains(text, event_text(3, histogram)));
  EXPECT_TRUE(
      contains(text,
               "tag: \"activations/lacking\"\n      tensor {\n        dtype: DT_STRING\n        "
               "tensor_shape {\n          dim {\n            size: 1\n          }\n        }\n        "
               "string_val: \"none of conv1\"\n      }\n      metadata {\n        plugin_data {\n          "
               "plugin_name: \"text\"\n        }\n        data_class: DATA_CLASS_TENSOR\n"));
  const std::string images = text.substr(std::min(text.size(), text.find("event {\n  step: 4\n")));
  for (const char* const part : {"tag: \"images\"", "dtype: DT_STRING", "size: 4", "string_val: \"5\"\n",
                                 "string_val: \"2\"\n", "string_val: \"\\211PNG\\r\\n",
                                 "IHDR\\000\\000\\000\\005\\000\\000\\000\\002\\010\\002" /* in colour */,
                                 "plugin_name: \"images\"", "data_class: DATA_CLASS_BLOB_SEQUENCE"}) {
    EXPECT_TRUE(contains(images, part));
  }
  const std::regex png("\\\\211PNG[^\n]*");
  std::set<std::string> pngs;
  for (std::sregex_iterator at(images.begin(), images.end(), png), end; at != end; ++at)
    pngs.insert(at->str());
  EXPECT_EQ(pngs.size(), 2u) << "two images";
}

TEST_F(Protoc, DecodesTheScalarsUnderTheNamesOfTheTutorial) {
  {
    TensorBoard board(folder_ / "board", 10, {small_net(), {}}, Log(0));
    board.write(11, {{"local3", 0.25}, {"local4", 0.125}});
    board.note(record_of(2.0, 0.5));
    StepReport r = scalars_at(20);
    board.write(r);
    r.step = 30;
    r.decay_term = 0.0;
    r.gradient_norm = 1.5;
    r.compute_ms_min = 3.0;
    r.compute_ms_median = 4.0;
    r.compute_ms_max = 5.0;
    board.write(r);
    board.write(EvaluationReport{30, 1.5, 0.75, 0.875});
  }
  const std::string text = decoded(event_files(folder_ / "board").at(0));
  EXPECT_TRUE(text.starts_with(event_text(0, "  file_version: \"brain.Event:2\"\n") +
                               event_text(11, "  session_log {\n    status: START\n  }\n") +
                               "event {\n  graph_def {\n"))
      << text;
  const std::string common = scalar_text("learning_rate", "0.125") + scalar_text("global_step/sec", "4") +
                             scalar_text("images_per_second", "512") + scalar_text("train_accuracy", "0.25");
  const auto summary = [](std::uint64_t step, const std::string& values) {
    return event_text(step, "  summary {\n" + values + "  }\n");
  };
  const std::string cross_entropy =
      scalar_text("cross_entropy (raw)", "2") + scalar_text("cross_entropy", "2");
  const std::string wanted =
      summary(11, scalar_text("local3/weight_loss (raw)", "0.25") +
                      scalar_text("local4/weight_loss (raw)", "0.125")) +
      summary(20, cross_entropy + scalar_text("weight_loss (raw)", "0.5") +
                      scalar_text("weight_loss", "0.5") + scalar_text("total_loss (raw)", "2.5") +
                      scalar_text("total_loss", "2.5") + common) +
      summary(30, cross_entropy + scalar_text("total_loss (raw)", "2") + scalar_text("total_loss", "2.5") +
                      common + scalar_text("gradient_norm", "1.5") + scalar_text("compute_ms/min", "3") +
                      scalar_text("compute_ms/median", "4") + scalar_text("compute_ms/max", "5")) +
      summary(30, scalar_text("Precision @ 1", "0.75") + scalar_text("test_cross_entropy", "0.875"));
  ASSERT_GE(text.size(), wanted.size());
  EXPECT_EQ(text.substr(text.size() - wanted.size()), wanted);
}

TEST_F(Protoc, DecodesTheHyperparametersAsNumbersAndTexts) {
  {
    const TensorBoard board(folder_ / "board", 0, {small_net(), {{"lr", "0.125"}, {"schedule", "cosine"}}},
                            Log(0));
  }
  const std::string text = decoded(event_files(folder_ / "board").at(0));
  const std::string wanted = R"(  summary {
    value {
      tag: "_hparams_/session_start_info"
      tensor {
        dtype: DT_FLOAT
        tensor_shape {
          dim {
            size: 0
          }
        }
      }
      metadata {
        plugin_data {
          plugin_name: "hparams"
          content {
            session_start_info {
              hparams {
                key: "lr"
                value {
                  number_value: 0.125
                }
              }
              hparams {
                key: "schedule"
                value {
                  string_value: "cosine"
                }
              }
            }
          }
        }
        data_class: DATA_CLASS_TENSOR
      }
    }
  }
)";
  EXPECT_TRUE(contains(text, wanted));
}

/// A node with its inputs and the extents of its output.
std::string node_text(const std::string& name, const std::string& op, const std::vector<std::string>& inputs,
                      const std::vector<int>& shape) {
  std::string text = "    node {\n      name: \"" + name + "\"\n      op: \"" + op + "\"\n";
  for (const std::string& input : inputs) text += "      input: \"" + input + "\"\n";
  text +=
      "      attr {\n        key: \"_output_shapes\"\n        value {\n          list {\n            shape "
      "{\n";
  for (const int extent : shape)
    text += "              dim {\n                size: " + std::to_string(extent) + "\n              }\n";
  return text + "            }\n          }\n        }\n      }\n    }\n";
}

TEST_F(Protoc, DecodesTheNetworkWithItsParametersAndShapes) {
  { const TensorBoard board(folder_ / "board", 0, {small_net(), {}}, Log(0)); }
  const std::string wanted =
      "  graph_def {\n" + node_text("image", "Placeholder", {}, {-1, 8, 8, 3}) +
      node_text("first_conv/weights", "Variable", {}, {3, 3, 3, 4}) +
      node_text("first_conv/biases", "Variable", {}, {4}) +
      node_text("first_conv/Conv2d", "Conv2d", {"image", "first_conv/weights", "first_conv/biases"},
                {-1, 8, 8, 4}) +
      node_text("relu_1", "ReLU", {"first_conv/Conv2d"}, {-1, 8, 8, 4}) +
      node_text("sum", "Add", {"relu_1", "relu_1"}, {-1, 8, 8, 4}) +
      node_text("last/weights", "Variable", {}, {256, 10}) + node_text("last/biases", "Variable", {}, {10}) +
      node_text("last/Linear", "Linear", {"sum", "last/weights", "last/biases"}, {-1, 1, 1, 10}) +
      node_text("labels", "Placeholder", {}, {-1}) +
      node_text("softmax_cross_entropy", "SoftmaxCrossEntropy", {"last/Linear", "labels"}, {}) + "  }\n";
  const std::string text = decoded(event_files(folder_ / "board").at(0));
  EXPECT_TRUE(contains(text, wanted));
}

TEST(GraphDef, NamesEveryNodeOnceAndReadsOnlyWhatStandsBefore) {
  for (const model::ModelInfo& info : model::catalog()) {
    const model::NetSpec net = model::make_model(info.name, {32, 32, 3}, 10);
    std::set<std::string> names;
    std::size_t params = 0;
    for (const model::Operation& operation : net.operations) params += operation.params.size();
    for (const test::Field& node : test::fields_of(graph_def(net))) {
      std::string name;
      for (const test::Field& part : test::fields_of(node.value)) {
        if (part.number == 1) name = part.value;
        if (part.number != 3) continue;
        EXPECT_TRUE(names.contains(part.value)) << name << " reads " << part.value;
      }
      EXPECT_TRUE(names.insert(name).second) << name << " twice";
      EXPECT_TRUE(std::regex_match(name, std::regex("[A-Za-z0-9.][A-Za-z0-9_>./]*"))) << name;
    }
    EXPECT_EQ(names.size(), net.operations.size() + params + 2) << info.name;  // image and labels
  }
}

TEST(GraphDef, TellsLayersOfOneNameApart) {
  model::NetBuilder net("twice", {8, 8, 3}, 10);
  const model::Value x = net.add(net.image(), net.image(), {"image"});
  const model::NetSpec spec =
      net.softmax_cross_entropy(net.linear(net.add(x, x, {"image"}), {.name = "last", .outputs = 10}));
  std::vector<std::string> nodes;  // "name reads input input"
  for (const test::Field& node : test::fields_of(graph_def(spec))) {
    nodes.emplace_back();
    for (const test::Field& part : test::fields_of(node.value)) {
      if (part.number == 1) nodes.back() = part.value;
      if (part.number == 3) nodes.back() += " " + part.value;
    }
  }
  ASSERT_GE(nodes.size(), 3u);
  nodes.resize(3);
  EXPECT_EQ(nodes, (std::vector<std::string>{"image", "image_1 image image", "image_2 image_1 image_1"}));
}

TEST(TensorBoard, AveragesTheLossOverEveryStepFromTheFirstOn) {
  const TempDir folder;
  const std::vector<double> losses{4.0, 2.0, 3.0, 1.0, 0.5};
  {
    TensorBoard board(folder / "board", 0, {small_net(), {}}, Log(0));
    for (std::size_t i = 0; i < losses.size(); ++i) {
      board.note(record_of(losses[i], 2.0 * losses[i]));
      StepReport r = scalars_at(i + 1);
      if (i == 0 || i == 4) board.write(r);
    }
  }
  // Weights 0.9^(n−i), which add up to (1 − 0.9^n) / 0.1.
  double sum = 0.0, weights = 0.0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double weight = std::pow(0.9, static_cast<double>(losses.size() - 1 - i));
    sum += weight * losses[i];
    weights += weight;
  }
  const Lines lines = test::lines_of(folder / "board", Reader::rust);
  const auto last = [&](const char* tag) { return lines.at(tag).at(1).second; };
  EXPECT_FLOAT_EQ(lines.at("cross_entropy").at(0).second, 4.0f);
  EXPECT_FLOAT_EQ(last("cross_entropy"), static_cast<float>(sum / weights));
  EXPECT_FLOAT_EQ(last("weight_loss"), static_cast<float>(2.0 * sum / weights));
  EXPECT_FLOAT_EQ(last("total_loss"), static_cast<float>(3.0 * sum / weights));
}

/// A start that is killed in the middle of a record, one that begins again before that, and one that
/// continues where the second ended.
TEST(TensorBoard, ShowsEveryTagOfAResumedRunAsOneLine) {
  const TempDir folder;
  const auto steps = [&](std::uint64_t from, std::uint64_t to) {
    TensorBoard board(folder / "board", from, {small_net(), {}}, Log(0));
    for (std::uint64_t step = from + 1; step <= to; ++step) {
      board.note(record_of(1.0, 0.5));
      StepReport r = scalars_at(step);
      r.learning_rate = static_cast<double>(to);  // tells the starts apart
      board.write(r);
      if (step % 3 == 0) board.write(EvaluationReport{step, 0.0, static_cast<double>(to), 0.0});
    }
  };
  steps(0, 8);
  const std::string first = event_files(folder / "board").at(0);
  std::filesystem::resize_file(first, std::filesystem::file_size(first) - 5);
  steps(4, 7);
  steps(7, 10);
  for (const Reader reader : {Reader::python, Reader::rust}) {
    const Lines lines = test::lines_of(folder / "board", reader);
    for (const auto& [tag, points] : lines) {
      const bool evaluated = tag == "Precision @ 1" || tag == "test_cross_entropy";
      EXPECT_EQ(steps_of(points), evaluated ? "3 6 9" : "1 2 3 4 5 6 7 8 9 10") << tag;
    }
    std::string starts;
    for (const auto& [step, value] : lines.at("learning_rate"))
      starts += std::to_string(std::lround(value)) + " ";
    EXPECT_EQ(starts, "8 8 8 8 7 7 7 10 10 10 ");
  }
}

TEST(TensorBoard, WritesNothingWhenItIsOff) {
  TensorBoard board;
  board.note(record_of(1.0, 0.5));
  board.write(scalars_at(10));
  board.write(EvaluationReport{});
  board.write(1, {{"local3", 1.0}});
  EXPECT_FALSE(board);
}

}  // namespace
}  // namespace cifar_mpi::report
