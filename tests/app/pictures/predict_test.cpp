#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "app/programs.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "support/pictures.hpp"

/// cifar_mpi_eval --predict.
namespace cifar_mpi::test {
namespace {

TEST_F(Programs, PredictImageFilesAsTheImagesOfADataset) {
  ASSERT_EQ(run_command(kTrain + small("classifier") + " --device cpu").code, 0);
  const std::string eval = kEval + " " + file("classifier") + " --device cpu --threads 1";
  ASSERT_EQ(run_command(eval + data() + " --predictions " + file("known.csv")).code, 0);
  const data::DatasetFile set(file("small.h5"));
  const data::Samples test = set.read(data::Split::test, {0, 2});
  for (int i = 0; i < 2; ++i) {
    const auto at = test.images.begin() + i * 32 * 32 * 3;
    write_file(file(concat("image", i, ".png")), png_file(32, 32, Values(at, at + 32 * 32 * 3)));
  }
  write_file(file("large.jpg"), jpeg_file(64, 48, filled(64, 48, {200, 30, 30})));
  std::filesystem::create_symlink("image1.png", file("link.png"));
  const std::string predicted = output_of(run_command(eval + " --predict " + file("image0.png") + " " +
                                                      file("link.png") + " " + file("large.jpg")));
  // index,label,class,predicted_label,predicted_class,probability
  std::istringstream known(read_file(file("known.csv")));
  std::string row;
  std::getline(known, row);
  for (const char* name : {"image0.png", "link.png"}) {
    std::getline(known, row);
    std::istringstream cells(row);
    std::string label, probability;
    for (int i = 0; i < 5; ++i) std::getline(cells, label, ',');
    std::getline(cells, probability, ',');
    char digits[16];
    std::snprintf(digits, sizeof digits, "%.4f", std::stod(probability));
    const std::string line = concat(file(name), ": ", label, " ", digits, ", ");
    EXPECT_EQ(count_lines_with(predicted, line), 1) << line << "\n" << predicted;
  }
  EXPECT_EQ(count_lines_with(predicted, "(scaled from 64x48 to 32x32, as cifar_mpi_pack does)"), 1)
      << predicted;

  const std::string json =
      output_of(mpirun(2, eval + " --json --predict " + file("large.jpg") + " 2>" + file("log")));
  EXPECT_TRUE(contains(json, "\"size\":32,\"predictions\":[{\"image\":\"" + file("large.jpg") +
                                 "\",\"width\":64,\"height\":48,\"label\":"));
}

TEST_F(Programs, RefuseToPredictWhatIsNoImage) {
  ASSERT_EQ(run_command(kTrain + small("refuser") + " --device cpu").code, 0);
  const std::string predict = kEval + " " + file("refuser") + " --device cpu --threads 1 --predict ";
  write_file(file("text.png"), "no picture");
  write_file(file("torn.png"), "\x89PNG\r\n\x1a\n and no more");
  for (const std::string name : {"text.png", "missing.jpg", "torn.png"}) {
    const Outcome refused = run_command(predict + file(name));
    expect_refusal(refused, 3, name + "': ");
    expect_refusal(refused, 3, "; --predict takes readable, whole PNG and JPEG files");
  }
  expect_refusal(run_command(predict + file("text.png") + " --watch"), 2, "--watch");

  const std::string wide = file("wide.h5");
  ASSERT_EQ(run_command(kPack + " --synthetic 64 --image 26x30x3 --out " + wide).code, 0);
  ASSERT_EQ(run_command(kTrain + " --device cpu --data " + wide + " --run-dir " + file("wide") +
                        " --batch-size 8 --steps 2 --threads 1")
                .code,
            0);
  expect_refusal(run_command(kEval + " " + file("wide") + " --device cpu --predict " + file("text.png")), 2,
                 "26x30x3");
}

}  // namespace
}  // namespace cifar_mpi::test
