#include "run/best_checkpoint.hpp"

#include <exception>
#include <utility>
#include <vector>

#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/run/run_directory.hpp"

namespace cifar_mpi::run {
namespace {

/// Nothing where it is no share of images.
std::optional<double> accuracy_in(const std::string& path) {
  const std::optional<double> recorded = recorded_test_accuracy(path);
  return recorded && *recorded >= 0.0 && *recorded <= 1.0 ? recorded : std::nullopt;
}

}  // namespace

TestAccuracies::TestAccuracies(std::string run_dir) : run_dir_(std::move(run_dir)) {}

std::optional<BestCheckpoint> TestAccuracies::best(std::uint64_t newest) {
  const std::vector<CheckpointFile> files = list_checkpoints(run_dir_);
  while (true) {
    const CheckpointFile* first = nullptr;
    std::optional<BestCheckpoint> best;
    for (const CheckpointFile& file : files) {
      if (file.step > newest) break;
      const auto [known, is_new] = known_.try_emplace(file.step);
      if (is_new) known->second.test_accuracy = accuracy_in(file.path);
      const std::optional<double>& accuracy = known->second.test_accuracy;
      if (!accuracy || (best && *accuracy <= best->test_accuracy)) continue;
      best = {file.step, *accuracy};
      first = &file;
    }
    if (!best || known_[best->step].proved) return best;
    prove(best->step, first->path);
  }
}

void TestAccuracies::prove(std::uint64_t step, const std::string& path) {
  Known& known = known_[step];
  known.proved = true;
  try {
    if (read_checkpoint(path).progress.step != step) known.test_accuracy.reset();
  } catch (const std::exception&) {
    known.test_accuracy.reset();
  }
}

void TestAccuracies::note_written(std::uint64_t step, std::optional<double> test_accuracy) {
  known_[step] = {test_accuracy, true};
}

}  // namespace cifar_mpi::run
