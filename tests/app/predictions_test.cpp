#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "app/programs.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/evaluation/evaluate_checkpoint.hpp"

/// The output of cifar_mpi_eval besides the accuracy.
namespace cifar_mpi::test {
namespace {

std::vector<std::vector<std::string>> rows_of(const std::string& csv) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(csv);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
  }
  return rows;
}

TEST_F(Programs, WritePredictionsThatGiveTheAccuracyOfTheEvaluation) {
  ASSERT_EQ(run_command(kTrain + small("predicted") + " --device cpu").code, 0);
  const Outcome evaluated = mpirun(2, kEval + data() + " " + file("predicted") + " --threads 1 --json 2>" +
                                          file("log") + " --predictions " + file("all.csv"));
  ASSERT_EQ(evaluated.code, 0) << evaluated.output << read_file(file("log"));
  const data::DatasetFile set(file("small.h5"));
  const std::vector<std::uint8_t> labels = set.read_labels(data::Split::test);
  const auto rows = rows_of(read_file(file("all.csv")));
  ASSERT_EQ(rows.size(), labels.size() + 1);
  EXPECT_EQ(rows[0][0] + "," + rows[0].back(), "index,logit_9");
  std::size_t correct = 0;
  std::vector<std::vector<int>> confusion(10, std::vector<int>(10));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::vector<std::string>& row = rows[i + 1];
    ASSERT_EQ(row.size(), 16u);
    EXPECT_EQ(row[0], std::to_string(i));
    EXPECT_EQ(row[1], std::to_string(labels[i]));
    EXPECT_EQ(row[4], set.info().label_names[std::stoul(row[3])]);
    double sum = 0.0;
    std::size_t largest = 0;
    std::vector<double> logits;
    for (std::size_t j = 0; j < 10; ++j) {
      logits.push_back(static_cast<double>(std::stof(row[6 + j])));  // which the digits stand for
      if (logits[j] > logits[largest]) largest = j;
      sum += std::exp(logits[j]);
    }
    EXPECT_EQ(row[3], std::to_string(largest));
    EXPECT_NEAR(std::stod(row[5]), std::exp(logits[largest]) / sum, 1e-12);
    correct += row[1] == row[3] ? 1 : 0;
    ++confusion[labels[i]][largest];
  }
  std::string matrix;
  for (const std::vector<int>& row : confusion) {
    matrix += matrix.empty() ? "[" : ",[";
    for (std::size_t j = 0; j < 10; ++j) matrix += concat(j == 0 ? "" : ",", row[j]);
    matrix += "]";
  }
  for (const std::string& part :
       {concat("\"correct\":", correct, ","), concat("\"images\":", labels.size(), ","),
        concat("\"confusion\":[", matrix, "]")})
    EXPECT_TRUE(contains(evaluated.output, part));
  EXPECT_EQ(count_lines_with(evaluated.output, ""), 1) << evaluated.output;  // one object and no more
}

TEST_F(Programs, SayInWhichPrecisionTheyEvaluate) {
  output_of(run_command(kTrain + small("in_bf16") + " --device cpu --precision bf16"));
  const std::string eval = kEval + data() + " --threads 1 --device cpu " + file("in_bf16") + " --precision ";
  const Outcome other = run_command(eval + "fp32");
  EXPECT_EQ(count_lines_with(other.output, ", in fp32 (the run evaluates in bf16: --precision bf16)"), 1)
      << other.output;
  const Outcome same = run_command(eval + "bf16");
  EXPECT_EQ(count_lines_with(same.output, ", in bf16"), 1) << same.output;
  EXPECT_EQ(count_lines_with(same.output, "the run evaluates"), 0) << same.output;
  const Outcome json = run_command(eval + "bf16 --json 2>" + file("log"));
  EXPECT_TRUE(contains(json.output, ",\"precision\":\"bf16\",\"images\":"));
}

/// Logits of an image without a dataset, of the test split, and of ranks, from one set of views.
TEST_F(Programs, ShowTheViewsThatAreAskedFor) {
  ASSERT_EQ(run_command(kTrain + small("viewed") + " --device cpu").code, 0);
  const std::string eval = kEval + data() + " " + file("viewed") + " --threads 1 ";
  const Outcome plain = run_command(eval);
  EXPECT_EQ(count_lines_with(plain.output, "views"), 0) << plain.output;
  const std::string six = output_of(run_command(eval + "--views 6 --predictions " + file("six_1.csv")));
  static const std::regex kAlone("precision @ 1 = ([0-9.]+)");
  std::smatch alone;
  ASSERT_TRUE(std::regex_search(plain.output, alone, kAlone));
  EXPECT_TRUE(std::regex_search(six, std::regex("6 views of each image in [0-9.]+ s; the image alone: " +
                                                alone[1].str() + " in [0-9.]+ s")))
      << six << plain.output;
  const Outcome ranks = mpirun(2, eval + "--views 6 --json --predictions " + file("six_2.csv"));
  EXPECT_TRUE(contains(ranks.output, "\"views\":6,"));
  EXPECT_TRUE(contains(ranks.output, "\"other_views_seconds\":"));
  EXPECT_EQ(read_file(file("six_1.csv")), read_file(file("six_2.csv")));
  expect_refusal(run_command(eval + "--views 3"), 2, "--views");
  expect_refusal(run_command(kEval + " --views 2 --export-onnx " + file("a.onnx")), 2, "--views");
  expect_refusal(run_command(kTrain + small("never") + " --views 4"), 2, "--views: must be one of 1, 2, 6");
}

TEST_F(Programs, RefusePredictionsThatTheyCannotWrite) {
  const std::string eval = kEval + data() + " " + file("none") + " --predictions ";
  expect_refusal(run_command(eval + file("all.txt")), 2, "end it with .csv or .h5");
  expect_refusal(run_command(eval + file("small.h5/all.csv")), 5, "small.h5");
  expect_refusal(run_command(eval + file("all.csv") + " --watch"), 2, "--watch");
}

TEST_F(Programs, RefuseOptionsOfEvaluationThatHaveNoEffect) {
  const std::string eval = kEval + " " + file("none");
  for (const std::string task : {" --predict a.png", " --export-onnx a.onnx"}) {
    const std::string why = ", but" + task.substr(0, task.find(' ', 1)) + " reads no dataset; leave it out";
    expect_refusal(run_command(eval + task + " --other-classes"), 2,
                   "--other-classes accepts a dataset with other classes" + why);
    expect_refusal(run_command(eval + task + data()), 2, "--data names a dataset" + why);
  }
  for (const std::string task : {"", " --predict a.png", " --export-onnx a.onnx"})
    expect_refusal(run_command(eval + task + " --interval 2"), 2, "--interval needs --watch");
  for (const std::string option : {" --device cpu", " --precision fp32", " --threads 1", " --batch-size 8"})
    expect_refusal(run_command(eval + option + " --export-onnx a.onnx"), 2,
                   option.substr(1, option.find(' ', 1) - 1) +
                       " is for evaluations, but --export-onnx makes none; leave it out");
  for (const std::string task : {"", " --predict a.png", " --watch"})
    expect_refusal(run_command(eval + task + " --force"), 2,
                   "--force works only with --predictions or --export");
  // With them, it is the checkpoint that is missing.
  for (const std::string& written : {data() + " --predictions a.csv", std::string(" --export-onnx a.onnx")})
    expect_refusal(run_command("cd " + file("") + "; " + eval + written + " --force"), 4, "none");
}

TEST_F(Programs, OverwriteTheirOwnResultsAloneWhenForced) {
  ASSERT_EQ(run_command(kTrain + small("forced") + " --device cpu").code, 0);
  const std::string eval = kEval + " " + file("forced");
  const std::string checkpoint = read_file(file("forced/checkpoints/step_000000002.h5"));
  const std::vector<std::pair<std::string, std::string>> cases{
      {eval + data() + " --threads 1 --predictions " + file("forced.csv"), "a file of predictions"},
      {eval + data() + " --threads 1 --predictions " + file("forced.h5"), "a file of predictions"},
      {eval + " --export-onnx " + file("f.onnx"), "a model of cifar_mpi_eval"},
      {kPack + " --synthetic 8 --out " + file("packed.h5"), "a dataset"}};
  for (const auto& [command, what] : cases) {
    SCOPED_TRACE(command);
    const std::string written = command.substr(command.rfind(' ') + 1);
    for (const std::string& other : {checkpoint, std::string("kept")}) {
      write_file(written, other);
      const char* const unread = other == "kept" && written.ends_with(".h5") ? " that can be read" : "";
      expect_refusal(run_command(command + " --force"), 2,
                     concat(written, " exists and is not ", what, unread, "; give another name with --"));
      EXPECT_EQ(read_file(written), other);
    }
    std::filesystem::remove(written);
    EXPECT_EQ(run_command(command).code, 0);
    const std::string first = read_file(written);
    expect_refusal(run_command(command), 2, "exists already; name another file, or give --force");
    output_of(run_command(command + " --force"));
    EXPECT_EQ(read_file(written), first);
  }
}

TEST(RecordedNetwork, HasTheNamesOfTheClassesAndStatesWhatIsAssumed) {
  run::Checkpoint checkpoint;
  checkpoint.progress.identity = {{"model", "tutorial"},
                                  {"dataset image", "32x32x3"},
                                  {"dataset classes", "3"},
                                  {"dataset label names", "cat, dog, sea gull"},
                                  {"network input", "26x28"}};
  const evaluation::RecordedNetwork known = evaluation::recorded_network(checkpoint, "a.h5");
  EXPECT_EQ(known.label_names, (std::vector<std::string>{"cat", "dog", "sea gull"}));
  EXPECT_EQ(known.network.augment.crop_width, 28);
  EXPECT_TRUE(known.assumed.empty());

  checkpoint.progress.identity.pop_back();
  checkpoint.progress.identity.back().second = "a, b, c, d";
  const evaluation::RecordedNetwork old = evaluation::recorded_network(checkpoint, "a.h5");
  EXPECT_EQ(old.label_names, (std::vector<std::string>{"class 0", "class 1", "class 2"}));
  EXPECT_EQ(old.network.augment.crop_width, 24);
  ASSERT_EQ(old.assumed.size(), 1u);
  EXPECT_TRUE(contains(old.assumed[0], "assuming 24x24"));
}

}  // namespace
}  // namespace cifar_mpi::test
