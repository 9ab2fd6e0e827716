#include <gtest/gtest.h>

#include <filesystem>

#include "app/programs.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/dataset.hpp"

/// From the binary files of CIFAR-100 to its test accuracy.
namespace cifar_mpi::test {
namespace {

std::string names(const std::string& kind, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += concat(kind, "_", i, "\n");
  return text;
}

TEST_F(Programs, TrainOnCifar100) {
  std::filesystem::create_directory(file("hundred"));
  for (const auto& [name, records] : {std::pair("train.bin", 50'000u), std::pair("test.bin", 10'000u)}) {
    std::string first =
        std::string("\x13\x63", 2) + std::string(3072, '\x50');  // coarse 19, fine 99; the rest 0
    write_file(file(concat("hundred/", name)), first);
    std::filesystem::resize_file(file(concat("hundred/", name)), records * 3074u);
  }
  write_file(file("hundred/fine_label_names.txt"), names("fine", 100));
  write_file(file("hundred/coarse_label_names.txt"), names("coarse", 20));
  const std::string from = kPack + " --limit 50 --from " + file("hundred") + " --out ";
  const Outcome fine = run_command(from + file("fine.h5")),
                coarse = run_command(from + file("coarse.h5 --coarse"));
  EXPECT_EQ(count_lines_with(fine.output, "50 training and 10 test images of 32x32x3 in 100 classes"), 1)
      << fine.output;
  EXPECT_EQ(count_lines_with(coarse.output, "in 20 classes"), 1) << coarse.output;
  EXPECT_EQ(data::DatasetFile(file("fine.h5")).read_labels(data::Split::train)[0], 99);
  EXPECT_EQ(data::DatasetFile(file("coarse.h5")).read_labels(data::Split::train)[0], 19);
  EXPECT_EQ(data::DatasetFile(file("coarse.h5")).info().label_names[19], "coarse_19");

  const std::string run = " --data " + file("fine.h5") + " ";
  output_of(run_command(kTrain + run + "--run-dir " + file("hundred_run") +
                        " --batch-size 8 --steps 2 --threads 1"));
  const std::string evaluated = output_of(run_command(kEval + run + file("hundred_run") + " --threads 1"));
  EXPECT_EQ(count_lines_with(evaluated, "  fine_99"), 1) << evaluated;
}

TEST_F(Programs, RefuseSuperclassesOfCifar10) {
  std::filesystem::create_directory(file("ten"));
  write_file(file("ten/data_batch_1.bin"), "");
  expect_refusal(run_command(kPack + " --from " + file("ten") + " --coarse --out " + file("never.h5")), 2,
                 "--coarse takes CIFAR-100's superclasses");
  expect_refusal(run_command(kPack + " --synthetic 8 --coarse --out " + file("never.h5")), 2, "--coarse");
}

}  // namespace
}  // namespace cifar_mpi::test
