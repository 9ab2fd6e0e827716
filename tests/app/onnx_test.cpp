#include <gtest/gtest.h>

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
  ASSERT_EQ(run_command(kPack + " --synthetic 640 --image 30x34x3 --out " + set).code, 0);
  const Outcome trained =
      run_command(kTrain + " --device cpu --data " + set + " --run-dir " + run +
                  " --resume never --steps 20" + " --batch-size 32 --threads 1 " + GetParam());
  ASSERT_EQ(trained.code, 0) << trained.output;
  const Outcome evaluated = run_command(kEval + " " + run + " --device cpu --threads 1 --data " + set);
  ASSERT_EQ(evaluated.code, 0) << evaluated.output;
  const Outcome exported = run_command(kEval + " " + run + " --export-onnx " + model);
  ASSERT_EQ(exported.code, 0) << exported.output;
  const Outcome predicted =
      run_command(python + " " CIFAR_MPI_SOURCE_ROOT "/tests/app/run_onnx.py " + model + " " + set);
  ASSERT_EQ(predicted.code, 0) << predicted.output;
  std::filesystem::remove_all(run);

  // Both print four digits; their sums differ by rounding, about 1e-6 of the logits, which may turn a tie.
  const std::string& wanted = evaluated.output;
  EXPECT_NEAR(number_in(predicted.output, "cross-entropy ([0-9.]+)"),
              number_in(wanted, "cross-entropy ([0-9.]+)"), 2e-4)
      << wanted << predicted.output;
  EXPECT_NEAR(number_in(predicted.output, "([0-9]+) of 128") / 128.0,
              number_in(wanted, "precision @ 1 = ([0-9.]+)"), 0.01)
      << wanted << predicted.output;
}

INSTANTIATE_TEST_SUITE_P(Models, Onnx,
                         testing::Values("--model tutorial", "--model resnet20 --input-size 28",
                                         "--model resnet20 --normalize image --input-size 24"));

TEST_F(Programs, RefuseToExportWhatTheyCannot) {
  expect_refusal(run_command(kEval + " " + file("none") + " --export-onnx " + file("a.onnx")), 4,
                 file("none"));
  expect_refusal(run_command(kEval + " " + file("none") + " --watch --export-onnx " + file("a.onnx")), 2,
                 "--watch");
}

}  // namespace
}  // namespace cifar_mpi::test
