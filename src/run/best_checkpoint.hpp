#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "cifar_mpi/base/directory.hpp"

/// Which checkpoint of a run has the best test accuracy.
namespace cifar_mpi::run {

struct BestCheckpoint {
  std::uint64_t step = 0;
  double test_accuracy = 0.0;
};

/// The test accuracies that the checkpoints of a run directory record. The files record them, so a killed and
/// resumed run knows them too; each file is read once.
class TestAccuracies {
 public:
  /// Of evaluations with so many `views`, which alone can be compared; 0: with any. `run`, the opened run directory, must outlive this
  /// object.
  explicit TestAccuracies(const Directory& run, int views = 1) : run_(run), views_(views) {}

  /// The best of those up to step `newest`, of equal ones the earliest; empty if none was evaluated. A file counts only
  /// if it can be read completely and is of the step in its name. Throws Error{io} as `list_checkpoints` does.
  std::optional<BestCheckpoint> best(std::uint64_t newest);

  /// The checkpoint that stays beyond others: the best, or, until an evaluation with these views is recorded, the best of
  /// any views.
  std::optional<BestCheckpoint> kept(std::uint64_t newest);

  /// Records that this process has written the checkpoint of `step`.
  void note_written(std::uint64_t step, std::optional<double> test_accuracy);

 private:
  struct Known {
    std::optional<double> test_accuracy;
    bool proved = false;  ///< the whole file has been read without error
  };
  void prove(std::uint64_t step);

  const Directory& run_;
  const int views_;
  std::map<std::uint64_t, Known> known_;  ///< by step
};

}  // namespace cifar_mpi::run
