#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "app/program.hpp"
#include "app/train_options.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::app {
namespace {

constexpr int kRanks = 4;

data::DatasetInfo some_dataset() {
  data::DatasetInfo info;
  info.image = {32, 40, 3};
  info.label_names = {"cat", "dog", "sea gull"};
  info.train_count = 51234;
  info.test_count = 10;
  return info;
}

/// The fingerprint of the run of `cifar_mpi_train OPTIONS`.
RunFingerprint fingerprint_of(const std::string& options) {
  std::istringstream words("cifar_mpi_train " + options);
  std::vector<std::string> held(std::istream_iterator<std::string>(words), {});
  std::vector<char*> argv;
  for (std::string& word : held) argv.push_back(word.data());
  CLI::App cli("", "cifar_mpi_train");
  TrainOptions chosen;
  chosen.add_to(cli);
  const auto code = parse(
      cli, static_cast<int>(argv.size()), argv.data(), [&] { config::check(chosen.config()); },
      [&] { return recipe_of(chosen.config().model); });
  if (code) return {{"refused with code", std::to_string(*code)}};
  const config::TrainConfig config = chosen.config();
  const data::DatasetInfo info = some_dataset();
  return config::run_fingerprint(config, config::resolve_sizes(config, kRanks, info), info);
}

std::string text_of(RunFingerprint::const_iterator begin, RunFingerprint::const_iterator end) {
  std::string text;
  for (auto item = begin; item != end; ++item) text += concat(" ", item->first, '=', item->second, " |");
  return text;
}

/// `items` relative to `plain`: lengths of the common prefix and suffix, and the text between them.
std::string against(const RunFingerprint& plain, const RunFingerprint& items) {
  const auto front = std::mismatch(plain.begin(), plain.end(), items.begin(), items.end());
  const auto back = std::mismatch(plain.rbegin(), std::make_reverse_iterator(front.first), items.rbegin(),
                                  std::make_reverse_iterator(front.second));
  return concat(front.second - items.begin(), " |", text_of(front.second, back.second.base()), ' ',
                back.second - items.rbegin());
}

/// Checkpoints contain these texts, so existing runs cannot resume after a change. The first line of the file
/// is the fingerprint of a run without options; every other line has options, " => ", and the difference from
/// it.
TEST(Fingerprints, StayAsCheckpointsHaveThem) {
  std::ifstream file(CIFAR_MPI_SOURCE_ROOT "/tests/app/fingerprints.txt");
  const RunFingerprint plain = fingerprint_of("");
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(text_of(plain.begin(), plain.end()), line);
  int lines = 0;
  for (const std::string arrow = " => "; std::getline(file, line); ++lines) {
    const std::string options = line.substr(0, line.find(arrow));
    EXPECT_EQ(concat(options, arrow, against(plain, fingerprint_of(options))), line);
  }
  EXPECT_GE(lines, 60);
}

/// The value assumed for an item that a checkpoint lacks.
TEST(Fingerprints, StandForWhatOldCheckpointsLack) {
  RunFingerprint found = config::unrecorded_fingerprint();
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (RunFingerprint{{"--brightness", "0"},
                                   {"--clip-norm", "0"},
                                   {"--contrast", "0"},
                                   {"--flip", "random"},
                                   {"--image-size", "full"},
                                   {"--label-smoothing", "0"},
                                   {"--lookahead", "0"},
                                   {"--lookahead-keep", "0.7738"},
                                   {"--lookahead-power", "3"},
                                   {"--lookahead-steps", "0"},
                                   {"--normalize", "image"},
                                   {"--optimizer", "sgd"},
                                   {"--schedule", "staircase"},
                                   {"--sync-batch-norm", "false"},
                                   {"--tail-epochs", "0"},
                                   {"--update", "all-reduce or server"},
                                   {"network input", "24x24"}}));
}

}  // namespace
}  // namespace cifar_mpi::app
