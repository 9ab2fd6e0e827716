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

/// The test accuracies that the checkpoints of a run directory record. The files say which is the best, so a run that
/// was killed and goes on knows it too; each file is looked at once.
class TestAccuracies {
 public:
  /// `run`, the opened run directory, must outlive this object.
  explicit TestAccuracies(const Directory& run) : run_(run) {}

  /// The best of those up to step `newest`, of equal ones the earliest; nothing when none of them was evaluated. A
  /// file counts only when all of it can be read and it is of the step that its name says. Throws Error{io} as
  /// `list_checkpoints` does.
  std::optional<BestCheckpoint> best(std::uint64_t newest);

  /// This process has written the checkpoint of `step` (anew): it is good.
  void note_written(std::uint64_t step, std::optional<double> test_accuracy);

 private:
  struct Known {
    std::optional<double> test_accuracy;
    bool proved = false;  ///< the whole file is good
  };
  void prove(std::uint64_t step);

  const Directory& run_;
  std::map<std::uint64_t, Known> known_;  ///< by step
};

}  // namespace cifar_mpi::run
