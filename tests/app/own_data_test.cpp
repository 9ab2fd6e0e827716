#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

#include "app/programs.hpp"
#include "app/python.hpp"
#include "cifar_mpi/data/dataset.hpp"

/// Datasets from other programs.
namespace cifar_mpi::test {
namespace {

TEST_F(Programs, ReadWhatThePageWritesWithH5py) {
  const std::string program = python_of("src/run/README.md");
  ASSERT_NE(program.find("h5py"), std::string::npos) << "src/run/README.md has no example in Python";
  const std::string python = python_with("h5py, numpy");
  if (python.empty())
    GTEST_SKIP()
        << "no h5py here (Debian and Ubuntu: python3-h5py), so the example of src/run/README.md was not run";
  write_file(file("example.py"), program);
  const Outcome written = run_command("cd " + file("") + " && " + python + " example.py");
  ASSERT_EQ(written.code, 0) << written.output;
  const data::DatasetFile set(file("own.h5"));
  EXPECT_EQ(set.info().label_names, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_GT(set.read(data::Split::train, {0, set.info().train_count}).labels.size(), 8u);
  const Outcome trained = run_command(kTrain + " --data " + file("own.h5") + " --run-dir " + file("own_run") +
                                      " --batch-size 8 --steps 2 --threads 1");
  EXPECT_EQ(trained.code, 0) << trained.output;
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
  const Outcome renamed = run_command(eval + " --other-classes");
  EXPECT_EQ(renamed.code, 0) << renamed.output;
  static const std::regex kFound("cross-entropy [0-9.]+");
  std::smatch before, after;
  ASSERT_TRUE(std::regex_search(known.output, before, kFound)) << known.output;
  ASSERT_TRUE(std::regex_search(renamed.output, after, kFound)) << renamed.output;
  EXPECT_EQ(after[0], before[0]);
  EXPECT_EQ(count_lines_with(renamed.output, "is left as it is, because the classes have other names"), 1)
      << renamed.output;
  EXPECT_FALSE(std::filesystem::exists(file("of_names/evaluation.h5")));
}

}  // namespace
}  // namespace cifar_mpi::test
