#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/report/metrics.hpp"

namespace cifar_mpi::report {

/// The content of a metrics.jsonl, in its order. In reports a missing or null figure is NaN.
struct Metrics {
  std::vector<StepReport> steps;              ///< in ascending order of `step`
  std::vector<EvaluationReport> evaluations;  ///< in ascending order of `step`
  std::vector<RunEvent> events;               ///< their steps never decrease
  std::vector<std::string> problems;          ///< a sentence each: lines that cannot be read, by their number
};

/// Reads RUN_DIR/metrics.jsonl, even while a run appends to it, and old files without a version in the first
/// line. Throws Error{io} if it is missing, not a regular file, larger than 1 GiB or unreadable, Error{data}
/// for an unknown version. Invalid lines are reported in `problems` and left out, and so are lines after the
/// first two million reports. Unknown members are ignored.
Metrics read_metrics(const DirectoryEntry& file);

/// How a line ended.
enum class LineEnd {
  whole,
  overlong,  ///< it has more than 64 KiB and is passed on as empty
  torn,      ///< the file ends in the middle of it
};

/// Calls `take` for each line of an open file, without its line feed, until it returns false. Holds one line
/// at a time. Throws Error{io} with `path`, also for a file of more than 1 GiB.
void for_each_line(const Descriptor& file, const std::string& path,
                   const std::function<bool(const std::string& line, LineEnd end)>& take);

}  // namespace cifar_mpi::report
