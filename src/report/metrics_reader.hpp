#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/report/metrics.hpp"

namespace cifar_mpi::report {

/// The content of a metrics.jsonl, in its order. In reports a missing or null figure is NaN.
struct Metrics {
  std::vector<StepReport> steps;              ///< in ascending order of `step`
  std::vector<EvaluationReport> evaluations;  ///< in ascending order of `step`
  std::vector<RunEvent> events;               ///< their steps never fall
  std::vector<std::string> problems;          ///< a sentence each: lines that cannot be read, by their number
};

/// Reads RUN_DIR/metrics.jsonl, also while a run appends to it, and old files without a version in the first
/// line. Throws Error{io} if it is missing, not a regular file, larger than 1 GiB or unreadable, Error{data}
/// for an unknown version. Invalid lines are reported in `problems` and left out, and so are lines after the
/// first two million reports. Unknown members are ignored.
Metrics read_metrics(const DirectoryEntry& file);

}  // namespace cifar_mpi::report
