#include "run/best_checkpoint.hpp"

#include <exception>
#include <vector>

#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/run/run_directory.hpp"

namespace cifar_mpi::run {
namespace {

/// Empty if the value is not a share of images.
std::optional<double> accuracy_in(const InputFile& file, int views) {
  const std::optional<double> recorded = recorded_test_accuracy(file, views);
  return recorded && *recorded >= 0.0 && *recorded <= 1.0 ? recorded : std::nullopt;
}

}  // namespace

std::optional<BestCheckpoint> TestAccuracies::best(std::uint64_t newest) {
  const std::vector<std::uint64_t> steps = list_checkpoints(run_);
  while (true) {
    std::optional<BestCheckpoint> best;
    for (const std::uint64_t step : steps) {
      if (step > newest) break;
      const auto [known, is_new] = known_.try_emplace(step);
      if (is_new) known->second.test_accuracy = accuracy_in(open_checkpoint(run_, step), views_);
      const std::optional<double>& accuracy = known->second.test_accuracy;
      if (accuracy && (!best || *accuracy > best->test_accuracy)) best = {step, *accuracy};
    }
    if (!best || known_[best->step].proved) return best;
    prove(best->step);
  }
}

std::optional<BestCheckpoint> TestAccuracies::kept(std::uint64_t newest) {
  if (const auto found = best(newest)) return found;
  return TestAccuracies(run_, 0).best(newest);
}

void TestAccuracies::prove(std::uint64_t step) {
  Known& known = known_[step];
  known.proved = true;
  try {
    if (read_checkpoint(open_checkpoint(run_, step)).progress.step != step) known.test_accuracy.reset();
  } catch (const std::exception&) {
    known.test_accuracy.reset();
  }
}

void TestAccuracies::note_written(std::uint64_t step, std::optional<double> test_accuracy) {
  known_[step] = {test_accuracy, true};
}

}  // namespace cifar_mpi::run
