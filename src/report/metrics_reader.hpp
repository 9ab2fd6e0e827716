#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/report/metrics.hpp"

namespace cifar_mpi::report {

/// What stands in a metrics.jsonl, in its order. In reports a figure that is missing or null is NaN.
struct Metrics {
  std::vector<StepReport> steps;              ///< `step` grows from each to the next
  std::vector<EvaluationReport> evaluations;  ///< likewise
  std::vector<RunEvent> events;               ///< their steps never fall
  std::vector<std::string> problems;          ///< a sentence each: lines that cannot be read, by their number
};

/// Reads RUN_DIR/metrics.jsonl, also while a run appends to it, and of runs of before the first line said a version.
/// Throws Error{io} when it is missing, no file, of more than 1 GiB, or cannot be read, Error{data} for a version that
/// is not known; lines that mean nothing are told in `problems` and left out, and so is what lies behind the first two
/// million reports. Unknown members mean nothing.
Metrics read_metrics(const DirectoryEntry& file);

}  // namespace cifar_mpi::report
