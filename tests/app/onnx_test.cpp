#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

#include "app/command.hpp"
#include "app/programs.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "support/contains.hpp"
#include "support/temp_dir.hpp"

/// Models for other programs, and datasets from them.
namespace cifar_mpi::test {
namespace {

/// A Python that has these modules ("h5py, numpy"), or empty: the first one in PATH may be another.
std::string python_with(const std::string& modules) {
  for (const std::string python : {"python3", "/usr/bin/python3"}) {
    if (run_command(python + " -c 'import " + modules + "'").code == 0) return python;
  }
  return {};
}

/// The lines between ```python and ``` of a page of the checkout, the first ones that begin with `start`.
std::string python_of(const std::string& page, const std::string& start = "") {
  const std::string text = read_file(CIFAR_MPI_SOURCE_ROOT "/" + page), begin = "\n```python\n";
  const std::size_t at = text.find(begin + start);
  if (at == std::string::npos) return {};
  const std::size_t first = at + begin.size();
  return text.substr(first, text.find("\n```\n", first) + 1 - first);
}

/// The match of the group in `pattern` as a number.
double number_in(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? std::stod(match[1]) : -1.0;
}

/// Images are not square, so that errors in the crop and in the order of axes show.
class Onnx : public Programs, public testing::WithParamInterface<const char*> {};

TEST_P(Onnx, PredictsAsTheProgramDoes) {
  const std::string python = python_with("h5py, numpy, onnx");
  if (python.empty())
    GTEST_SKIP() << "no Python with onnx and h5py (Debian: python3-onnx, python3-h5py), so no model was run";
  const std::string set = file("odd.h5"), run = file("run"), model = file("model.onnx");
  ASSERT_EQ(run_command(kPack + " --synthetic 640 --image 30x34x3 --force --out " + set).code, 0);
  output_of(run_command(kTrain + " --device cpu --data " + set + " --run-dir " + run +
                        " --resume never --steps 20" + " --batch-size 32 --threads 1 " + GetParam()));
  const std::string predictions = file("predictions.h5");
  const std::string evaluated =
      output_of(run_command(kEval + " " + run + " --device cpu --threads 1 --data " + set +
                            " --force --predictions " + predictions));
  output_of(run_command(kEval + " " + run + " --force --export-onnx " + model));
  const std::string folder = CIFAR_MPI_SOURCE_ROOT "/tests/app", given = " " + set + " " + predictions;
  const std::string predicted =
      output_of(run_command(python + " " + folder + "/run_onnx.py " + model + given));
  // Both print four digits; compare_logits.py bounds the rest.
  EXPECT_NEAR(number_in(predicted, "cross-entropy ([0-9.]+)"),
              number_in(evaluated, "cross-entropy ([0-9.]+)"), 2e-4)
      << evaluated << predicted;

  std::filesystem::remove_all(run);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Onnx,
    testing::Values("--model tutorial", "--model resnet20 --input-size 28",
                    "--model resnet20 --normalize image --input-size 24",
                    "--model resnet18 --input-size 8 --batch-size 8 --steps 12 --lr 0.001",
                    "--model fast94 --input-size 18 --image-size full --tail-epochs 0.1"));

/// A program of the page, by the Python module that computes.
class PageOfInference : public Programs, public testing::WithParamInterface<std::string> {};

TEST_P(PageOfInference, ClassifiesAsTheProgramDoes) {
  const std::string modules = "h5py, " + GetParam(), start = "import sys, " + modules;
  const std::string python = python_with(modules), set = file("odd.h5"), run = file("run");
  if (python.empty()) GTEST_SKIP() << "no Python with " << modules << ", so the page's program was not run";
  ASSERT_EQ(run_command(kPack + " --synthetic 640 --image 30x34x3 --force --out " + set).code, 0);
  output_of(run_command(kTrain + " --device cpu --data " + set + " --run-dir " + run +
                        " --resume never --steps 20 --batch-size 32 --threads 1"));
  const std::string predictions = file("predictions.h5"), program = python_of("src/run/inference.md", start);
  const std::string evaluated =
      output_of(run_command(kEval + " " + run + " --device cpu --threads 1 --data " + set +
                            " --force --predictions " + predictions));
  ASSERT_NE(program, "") << "the page has no program that begins with " << start;
  write_file(file("classify.py"), program + "import numpy as np\nfrom compare_logits import compare\n" +
                                      "w = {name: np.asarray(x) for name, x in w.items()}\n" +
                                      "compare(np.asarray(logits), sys.argv[3], [x.size / x.shape[-1] for x "
                                      "in w.values() if x.ndim > 1])\n");
  const std::string classified = output_of(run_command("PYTHONPATH=" CIFAR_MPI_SOURCE_ROOT "/tests/app " +
                                                       python + " " + file("classify.py") + " " + run +
                                                       "/checkpoints/latest " + set + " " + predictions));
  EXPECT_NEAR(number_in(classified, "precision @ 1 = ([0-9.]+)"),
              number_in(evaluated, "precision @ 1 = ([0-9.]+)"), 1.01 / 128)  // a tie
      << classified << evaluated;
  std::filesystem::remove_all(run);
}

INSTANTIATE_TEST_SUITE_P(Modules, PageOfInference, testing::Values("numpy", "torch"));

TEST_F(Programs, RefuseToExportWhatTheyCannot) {
  expect_refusal(run_command(kEval + " " + file("none") + " --export-onnx " + file("a.onnx")), 4,
                 file("none"));
  expect_refusal(run_command(kEval + " " + file("none") + " --watch --export-onnx " + file("a.onnx")), 2,
                 "--watch");
}

TEST_F(Programs, ReadWhatThePageWritesWithH5py) {
  const std::string program = python_of("src/run/README.md");
  ASSERT_TRUE(contains(program, "h5py")) << "src/run/README.md has no example in Python";
  const std::string python = python_with("h5py, numpy");
  if (python.empty())
    GTEST_SKIP()
        << "no h5py here (Debian and Ubuntu: python3-h5py), so the example of src/run/README.md was not run";
  write_file(file("example.py"), program);
  output_of(run_command("cd " + file("") + " && " + python + " example.py"));
  const data::DatasetFile set(file("own.h5"));
  EXPECT_EQ(set.info().label_names, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_GT(set.read(data::Split::train, {0, set.info().train_count}).labels.size(), 8u);
  output_of(run_command(kTrain + " --data " + file("own.h5") + " --run-dir " + file("own_run") +
                        " --batch-size 8 --steps 2 --threads 1"));
}

TEST_F(Programs, CompareLabelsByNumberIfAskedTo) {
  ASSERT_EQ(run_command(kTrain + small("of_names") + " --device cpu").code, 0);
  const data::DatasetFile set(file("small.h5"));
  data::DatasetInfo info = set.info();
  info.label_names[0] += "_renamed";
  data::write_dataset(file("renamed.h5"), info, set.read(data::Split::train, {0, info.train_count}),
                      set.read(data::Split::test, {0, info.test_count}));
  const std::string eval = kEval + " " + file("of_names") + " --threads 1 --data " + file("renamed.h5");
  expect_refusal(run_command(eval), 4, "or give --other-classes to count labels by number");
  const Outcome known = run_command(kEval + " " + file("of_names") + " --threads 1" + data());
  std::filesystem::remove(file("of_names/evaluation.h5"));
  const std::string renamed = output_of(run_command(eval + " --other-classes"));
  static const std::regex kFound("cross-entropy [0-9.]+");
  std::smatch before, after;
  ASSERT_TRUE(std::regex_search(known.output, before, kFound)) << known.output;
  ASSERT_TRUE(std::regex_search(renamed, after, kFound)) << renamed;
  EXPECT_EQ(after[0], before[0]);
  EXPECT_EQ(count_lines_with(renamed, "is left as it is, because the classes have other names"), 1)
      << renamed;
  EXPECT_FALSE(std::filesystem::exists(file("of_names/evaluation.h5")));
}

}  // namespace
}  // namespace cifar_mpi::test
