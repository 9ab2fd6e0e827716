#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

#include "app/programs.hpp"
#include "app/python.hpp"

/// Models for other programs.
namespace cifar_mpi::test {
namespace {

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
  const Outcome trained =
      run_command(kTrain + " --device cpu --data " + set + " --run-dir " + run +
                  " --resume never --steps 20" + " --batch-size 32 --threads 1 " + GetParam());
  ASSERT_EQ(trained.code, 0) << trained.output;
  const std::string predictions = file("predictions.h5");
  const Outcome evaluated = run_command(kEval + " " + run + " --device cpu --threads 1 --data " + set +
                                        " --force --predictions " + predictions);
  ASSERT_EQ(evaluated.code, 0) << evaluated.output;
  const Outcome exported = run_command(kEval + " " + run + " --force --export-onnx " + model);
  ASSERT_EQ(exported.code, 0) << exported.output;
  const std::string folder = CIFAR_MPI_SOURCE_ROOT "/tests/app", given = " " + set + " " + predictions;
  const Outcome predicted = run_command(python + " " + folder + "/run_onnx.py " + model + given);
  ASSERT_EQ(predicted.code, 0) << predicted.output;
  // Both print four digits; compare_logits.py bounds the rest.
  EXPECT_NEAR(number_in(predicted.output, "cross-entropy ([0-9.]+)"),
              number_in(evaluated.output, "cross-entropy ([0-9.]+)"), 2e-4)
      << evaluated.output << predicted.output;

  std::filesystem::remove_all(run);
}

/// A program of the page, by the Python module that computes.
class PageOfInference : public Programs, public testing::WithParamInterface<std::string> {};

TEST_P(PageOfInference, ClassifiesAsTheProgramDoes) {
  const std::string modules = "h5py, " + GetParam(), start = "import sys, " + modules;
  const std::string python = python_with(modules), set = file("odd.h5"), run = file("run");
  if (python.empty()) GTEST_SKIP() << "no Python with " << modules << ", so the page's program was not run";
  ASSERT_EQ(run_command(kPack + " --synthetic 640 --image 30x34x3 --force --out " + set).code, 0);
  const Outcome trained = run_command(kTrain + " --device cpu --data " + set + " --run-dir " + run +
                                      " --resume never --steps 20 --batch-size 32 --threads 1");
  ASSERT_EQ(trained.code, 0) << trained.output;
  const std::string predictions = file("predictions.h5"), program = python_of("src/run/inference.md", start);
  const Outcome evaluated = run_command(kEval + " " + run + " --device cpu --threads 1 --data " + set +
                                        " --force --predictions " + predictions);
  ASSERT_EQ(evaluated.code, 0) << evaluated.output;
  ASSERT_NE(program, "") << "the page has no program that begins with " << start;
  write_file(file("classify.py"), program + "import numpy as np\nfrom compare_logits import compare\n" +
                                      "w = {name: np.asarray(x) for name, x in w.items()}\n" +
                                      "compare(np.asarray(logits), sys.argv[3], [x.size / x.shape[-1] for x "
                                      "in w.values() if x.ndim > 1])\n");
  const Outcome classified =
      run_command("PYTHONPATH=" CIFAR_MPI_SOURCE_ROOT "/tests/app " + python + " " + file("classify.py") +
                  " " + run + "/checkpoints/latest " + set + " " + predictions);
  EXPECT_EQ(classified.code, 0) << classified.output;
  EXPECT_NEAR(number_in(classified.output, "precision @ 1 = ([0-9.]+)"),
              number_in(evaluated.output, "precision @ 1 = ([0-9.]+)"), 1.01 / 128)  // a tie
      << classified.output << evaluated.output;
  std::filesystem::remove_all(run);
}

INSTANTIATE_TEST_SUITE_P(Modules, PageOfInference, testing::Values("numpy", "torch"));

TEST_F(Programs, RefuseToExportWhatTheyCannot) {
  expect_refusal(run_command(kEval + " " + file("none") + " --export-onnx " + file("a.onnx")), 4,
                 file("none"));
  expect_refusal(run_command(kEval + " " + file("none") + " --watch --export-onnx " + file("a.onnx")), 2,
                 "--watch");
}

}  // namespace
}  // namespace cifar_mpi::test
