#include <regex>
#include <sstream>
#include <string>

#include "app/programs.hpp"

/// What the log of a start says of the machine, the images and the kernels.
namespace cifar_mpi::test {
namespace {

class StartLog : public Programs {
 protected:
  static std::string log_of(const std::string& run, const std::string& options) {
    return output_of(run_command(kTrain + usual(run) + " --device cpu" + options));
  }
};

TEST_F(StartLog, WarnsOfTooLittleSpaceForTheCheckpoints) {
  const std::string log = log_of("many", " --keep 2000000000");  // more than any disk holds
  std::smatch found;
  ASSERT_TRUE(
      std::regex_search(log, found,
                        std::regex("warning: (\\S+) has [\\d.]+ MiB free, but the checkpoints of this "
                                   "run need ([\\d.]+) MiB more; free some, or give a smaller --keep")))
      << log;
  EXPECT_EQ(found[1], file("many"));
  // Weights and their averages of 4 bytes, and at most a fifth more.
  const double floats = 2e9 * 2.0 * 1068298.0, mib = 1048576.0;
  EXPECT_GE(std::stod(found[2]), floats * 4.0 / mib);
  EXPECT_LE(std::stod(found[2]), 1.2 * floats * 4.0 / mib);
  EXPECT_EQ(count_lines_with(log_of("one", " --keep 1"), " MiB free"), 0);
}

TEST_F(StartLog, SaysWhereTheNetworkSeesAPartOfAnImage) {
  EXPECT_EQ(count_lines_with(log_of("part", ""),
                             "; the network sees a part of 24x24 (--input-size): random in training, the "
                             "centre in evaluation"),
            1);
  EXPECT_EQ(count_lines_with(log_of("whole", " --augment crop"), "the network sees a part"), 0);
  EXPECT_EQ(count_lines_with(log_of("input", " --augment crop --input-size 28"), "sees a part of 28x28"), 1);
}

TEST_F(StartLog, ListsTheKernelsWhenAsked) {
  const std::string brief = log_of("brief", "");
  std::smatch found;
  ASSERT_TRUE(
      std::regex_search(brief, found, std::regex("\nkernels: (\\d+) choices; --show-kernels lists them\n")))
      << brief;
  const std::string full = log_of("full", " --show-kernels"), title = "\nkernels:\n";
  EXPECT_FALSE(contains(full, "choices; --show-kernels"));
  const std::size_t begin = full.find(title);
  ASSERT_NE(begin, std::string::npos) << full;
  std::istringstream lines(full.substr(begin + title.size()));
  int listed = 0, of_conv1 = 0;
  for (std::string line; std::getline(lines, line) && line.starts_with("  "); ++listed)
    of_conv1 += line.starts_with("  conv1");
  EXPECT_EQ(listed, std::stoi(found[1])) << full;
  EXPECT_GE(of_conv1, 1) << full;
}

}  // namespace
}  // namespace cifar_mpi::test
