#pragma once

#include <cstdint>
#include <string>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/comm/world.hpp"

namespace cifar_mpi::train {

/// --patience: counts evaluations until a run ends because its test accuracy no longer improves.
///
/// All ranks note the same accuracies, so they decide the same without asking each other.
class Patience {
 public:
  /// `limit`: evaluations in a row without a higher accuracy than any before; 0: never exhausted. `views`: of each image in
  /// these evaluations.
  explicit Patience(std::int64_t limit, int views = 1) : limit_(limit), views_(views) {}

  /// Takes over the evaluations of the run's earlier starts up to `step`, which rank 0 reads from metrics.jsonl. A file that
  /// cannot be read counts as none, with a warning. Evaluations with another number of views do not count. Collective.
  void resume(const comm::World& world, const Directory& run, std::uint64_t step, const Log& log);
  /// An evaluation of the run, in the order of steps.
  void note(std::uint64_t step, double test_accuracy);
  bool exhausted() const { return limit_ > 0 && without_ >= limit_; }
  /// "no evaluation of the last 3 was better than 71.23 % at step 1000 (--patience 3)"
  std::string text() const;

 private:
  std::int64_t limit_;
  int views_;
  std::int64_t without_ = 0;  ///< evaluations since the best
  std::uint64_t best_step_ = 0;
  double best_ = -1.0;
};

}  // namespace cifar_mpi::train
