#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "app/programs.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/run/evaluation_file.hpp"
#include "support/pictures.hpp"

/// cifar_mpi_pack --from-folder, and training on its result.
namespace cifar_mpi::test {
namespace {

class FolderPrograms : public Programs {
 protected:
  /// `count` pictures of each of three classes, light, dark and red, PNG and JPEG, of several sizes.
  static void make_set(const std::string& name, int count) {
    const std::vector<std::pair<std::string, Values>> classes{
        {"light", {230, 230, 230}}, {"dark", {20, 20, 20}}, {"red", {200, 20, 30}}};
    for (const auto& [label, colour] : classes) {
      std::filesystem::create_directories(file(concat(name, "/", label)));
      for (int i = 0; i < count; ++i) {
        const int width = 50 + i, height = 64 - i;
        const std::string stem = file(concat(name, "/", label, "/", i));
        const Values values = filled(width, height, colour);
        if (i % 2 == 0) {
          write_file(stem + ".png", png_file(width, height, values));
        } else {
          write_file(stem + ".jpg", jpeg_file(width, height, values));
        }
      }
    }
  }
  static std::string pack(const std::string& set, const std::string& out,
                          const std::string& more = " --size 48") {
    return kPack + " --from-folder " + file(set) + " --out " + file(out) + more;
  }
};

TEST_F(FolderPrograms, TrainOnAFolderPerClass) {
  make_set("set", 30);
  write_file(file("set/readme.txt"), "");
  const std::string packed = output_of(run_command(pack("set", "set.h5", " --size 48 --test-share 0.3")));
  EXPECT_EQ(count_lines_with(packed, "left out 1 files"), 1) << packed;
  EXPECT_EQ(count_lines_with(packed, "images of 48x48x3 in 3 classes"), 1) << packed;
  const data::DatasetFile set(file("set.h5"));
  EXPECT_EQ(set.info().label_names, (std::vector<std::string>{"dark", "light", "red"}));
  EXPECT_EQ(set.info().train_count + set.info().test_count, 90u);
  const data::Samples test = set.read(data::Split::test, {0, set.info().test_count});
  for (std::size_t i = 0; i < test.labels.size(); ++i) {
    constexpr int kRed[] = {20, 230, 200}, kGreen[] = {20, 230, 20};
    EXPECT_NEAR(test.images[i * 48 * 48 * 3], kRed[test.labels[i]], 3);
    EXPECT_NEAR(test.images[(i + 1) * 48 * 48 * 3 - 2], kGreen[test.labels[i]], 3);
  }
  const std::string run = " --data " + file("set.h5");
  output_of(
      run_command(kTrain + run + " --run-dir " + file("set_run") + " --batch-size 8 --steps 3 --threads 1"));
  const std::string evaluated = output_of(run_command(kEval + run + " " + file("set_run") + " --threads 1"));
  EXPECT_EQ(count_lines_with(evaluated, "  light "), 1) << evaluated;
}

TEST_F(FolderPrograms, NameTheFilesOfTheImagesThatTheyEvaluate) {
  make_set("named", 20);
  for (const char* name : {"named/red/a,b.png", "named/red/\"c.png", "named/red/c\nd.png"})
    std::filesystem::copy_file(file("named/red/0.png"), file(name));
  ASSERT_EQ(run_command(pack("named", "named.h5", " --size 24 --test-share 0.8 --stratify")).code, 0);
  const data::DatasetFile set(file("named.h5"));
  EXPECT_EQ(set.info().test_count, 16u + 16u + 18u);
  const std::vector<std::string> files = set.read_files(data::Split::test);
  const std::string on = " --data " + file("named.h5");
  ASSERT_EQ(run_command(kTrain + on + " --run-dir " + file("named_run") + " --batch-size 4 --steps 1").code,
            0);
  const std::string evaluated = output_of(
      mpirun(2, kEval + on + " " + file("named_run") + " --threads 1 --predictions " + file("named.csv")));
  const std::string csv = read_file(file("named.csv"));
  EXPECT_TRUE(csv.starts_with("index,label,class,predicted_label,predicted_class,probability,"));
  EXPECT_TRUE(contains(csv, "logit_2,file\n")) << csv.substr(0, 200);
  for (const std::string& name : files) {
    std::string field = name;
    if (name.find(',') != std::string::npos) field = "\"red/a,b.png\"";
    if (name.find('"') != std::string::npos) field = "\"red/\"\"c.png\"";
    if (name.find('\n') != std::string::npos) field = "\"red/c\nd.png\"";
    EXPECT_TRUE(contains(csv, "," + field + "\n")) << field;
  }
  const run::EvaluationFile kept = run::read_evaluation(file("named_run/evaluation.h5"));
  ASSERT_FALSE(kept.mistakes.files.empty()) << evaluated;
  for (std::size_t i = 0; i < kept.mistakes.files.size(); ++i)
    EXPECT_EQ(kept.mistakes.files[i], files[kept.mistakes.indices[i]]);
  EXPECT_EQ(count_lines_with(evaluated, " images misclassified, the most certain first:"), 1);
  const auto most =
      std::ranges::max_element(kept.mistakes.probabilities) - kept.mistakes.probabilities.begin();
  const std::string line = concat("  image ", kept.mistakes.indices[static_cast<std::size_t>(most)], " (");
  EXPECT_EQ(count_lines_with(evaluated, line), 1) << line << "\n" << evaluated;
}

TEST_F(FolderPrograms, WarnOfClassesWithoutATestImage) {
  make_set("bare", 4);
  const Outcome all = run_command(pack("bare", "bare.h5", " --size 8"));
  EXPECT_EQ(count_lines_with(all.output, "no test image"), 0) << all.output;
  std::filesystem::create_directories(file("bare/single"));
  std::filesystem::copy_file(file("bare/red/0.png"), file("bare/single/0.png"));
  const Outcome bare = run_command(pack("bare", "bare.h5", " --size 8 --force"));
  EXPECT_EQ(bare.code, 0);
  EXPECT_EQ(count_lines_with(bare.output, "warning: 1 class has no test image: single"), 1) << bare.output;
}

TEST_F(FolderPrograms, TakeATestFolderOfTheSameClasses) {
  make_set("train", 4);
  make_set("other", 2);
  const std::string with_test = " --size 8 --test-folder " + file("other");
  const Outcome packed = run_command(pack("train", "own.h5", with_test));
  EXPECT_EQ(count_lines_with(packed.output, "12 training and 6 test images"), 1) << packed.output;
  const Outcome few = run_command(pack("train", "few.h5", with_test + " --limit 5"));
  EXPECT_EQ(count_lines_with(few.output, "5 training and 1 test images"), 1) << few.output;
  std::filesystem::remove_all(file("other/red"));
  expect_refusal(run_command(pack("train", "other.h5", with_test)), 3, "has a class 'red'");
}

TEST_F(FolderPrograms, RefuseOrSkipWhatCannotBeRead) {
  make_set("torn", 20);
  const std::string with_test = " --size 8 --test-folder " + file("torn");
  for (int i = 0; i < 14; ++i)
    write_file(file(concat("torn/red/", i, i % 2 == 0 ? ".png" : ".jpg")), "\x89PNG\r\n\x1a\n and no more");
  expect_refusal(run_command(pack("torn", "torn.h5", with_test)), 3, "--skip-unreadable");
  EXPECT_FALSE(std::filesystem::exists(file("torn.h5")));
  const std::string packed =
      output_of(run_command(pack("torn", "torn.h5", with_test + " --skip-unreadable")));
  EXPECT_EQ(count_lines_with(packed, "warning: cannot read"), 10) << packed;
  EXPECT_EQ(count_lines_with(packed, "left out 28 files that cannot be read"), 1) << packed;
  EXPECT_EQ(count_lines_with(packed, "46 training and 46 test images"), 1) << packed;
}

TEST_F(FolderPrograms, RefuseOptionsOfFoldersThatMakeNoSense) {
  make_set("plain", 4);
  const std::vector<std::pair<std::string, std::string>> cases{
      {pack("plain", "never.h5", ""), "--size"},
      {pack("plain", "never.h5", " --size 7"), "from 8 to 1024"},
      {pack("plain", "never.h5", " --size 8 --test-share 1"), "from 0.001 to 0.9"},
      {pack("plain", "never.h5", " --size 8 --test-share 0.5 --test-folder " + file("plain")), "--test-"},
      {pack("plain", "never.h5", " --size 8 --synthetic 8"), "--synthetic"},
      {pack("plain", "never.h5", " --size 8 --stratify --test-folder " + file("plain")), "--test-folder"},
      {pack("plain", "never.h5", " --size 8 --coarse"), "--coarse"},
      {kPack + " --synthetic 8 --size 8 --out " + file("never.h5"), "--size"},
      {kPack + " --synthetic 8 --skip-unreadable --out " + file("never.h5"), "--skip-unreadable"},
  };
  for (const auto& [command, part] : cases) {
    SCOPED_TRACE(command);
    expect_refusal(run_command(command), 2, part);
  }
  expect_refusal(run_command(pack("none", "never.h5")), 3, file("none"));
  EXPECT_FALSE(std::filesystem::exists(file("never.h5")));
}

}  // namespace
}  // namespace cifar_mpi::test
