#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "report/step_summary.hpp"

namespace cifar_mpi::report {

/// The histograms of a run over its steps: RUN_DIR/summaries.h5.
///
///   /variables/LAYER/weights …, /gradients/LAYER/weights …, /activations/LAYER    a group each
///     steps    [n] uint64, rising: after so many steps
///     edges    [n, 31] double
///     counts   [n, 30] uint64: values from edges[i] on, below edges[i + 1]; the last bucket has its end too
///     sparsity [n] double, of activations: the share of zeros
///   /activations has an attribute `lacking` where there are layers without: which, and why, in words
///   /images [n, height, width, channels] uint8: some of the first step that was looked at
///
/// Root attributes `format` = "cifar_mpi summaries" and `version` = 1. Data sets of one group belong together,
/// other groups may be missing or have other steps (a run that goes on elsewhere may fuse other layers).
///
/// It stays below 16 MiB or so: where there is no more room, and beyond 1000 steps of a group, the step goes that
/// is nearest to its neighbours; the first and the last stay.
class SummaryHistory {
 public:
  /// The counts of one step.
  struct Point {
    std::uint64_t step = 0;
    engine::ValueCounts counts;  ///< the buckets and their edges
    double sparsity = 0.0;       ///< of activations
  };
  using Series = std::map<std::string, std::vector<Point>>;  ///< by path of the group

  /// What a run has after `completed` steps: the file's steps up to there. Nothing where there is no file. Throws
  /// Error{checkpoint} when it is damaged or none of ours.
  static SummaryHistory read(const DirectoryEntry& entry, std::uint64_t completed = UINT64_MAX);
  /// Atomically. Throws Error{io}.
  void write(const DirectoryEntry& target) const;

  void add(const StepSummary& summary);
  bool has_images() const { return !images_.empty(); }
  void keep(InputImages images) { images_ = std::move(images); }
  /// Which activations are not added, in words.
  void lacks(std::string words) { lacking_ = std::move(words); }
  const std::string& lacking() const { return lacking_; }
  const InputImages& images() const { return images_; }
  const Series& series() const { return series_; }

 private:
  void add(const std::string& group, std::uint64_t step, const engine::ValueCounts& counts);
  std::size_t most_points() const;

  Series series_;
  InputImages images_;
  std::string lacking_;
};

}  // namespace cifar_mpi::report
