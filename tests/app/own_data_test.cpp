#include <gtest/gtest.h>

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

}  // namespace
}  // namespace cifar_mpi::test
