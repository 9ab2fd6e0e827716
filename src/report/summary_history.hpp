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
///     steps    [n] uint64, ascending: completed steps
///     edges    [n, 31] double
///     counts   [n, 30] uint64: values from edges[i] up to, not including, edges[i + 1],
///                              except that the last bucket includes its end
///     sparsity [n] double, of activations: the share of zeros
///   /activations has an attribute `lacking` if layers are missing: a text that says which, and why
///   /images [n, height, width, channels] uint8: some images of the first summary
///
/// Root attributes `format` = "cifar_mpi summaries" and `version` = 1. The data sets of a group have the same
/// n; groups may be missing or have different steps (a run resumed elsewhere may fuse other layers).
///
/// It stays below about 16 MiB: when that, or 1000 steps of a group, is exceeded, the step nearest to its
/// neighbours is removed; the first and the last stay.
class SummaryHistory {
 public:
  /// The counts of one step.
  struct Point {
    std::uint64_t step = 0;
    engine::ValueCounts counts;  ///< the buckets and their edges
    double sparsity = 0.0;       ///< of activations
  };
  using Series = std::map<std::string, std::vector<Point>>;  ///< by path of the group

  /// Reads the file's steps up to `completed`. Empty if there is no file. Throws Error{checkpoint} if it is
  /// damaged or not one of ours.
  static SummaryHistory read(const DirectoryEntry& entry, std::uint64_t completed = UINT64_MAX);
  /// Writes atomically. Throws Error{io}.
  void write(const DirectoryEntry& target) const;

  void add(const StepSummary& summary);
  bool has_images() const { return !images_.empty(); }
  void keep(InputImages images) { images_ = std::move(images); }
  /// Sets the text that says which activations are missing.
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
