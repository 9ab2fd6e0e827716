#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/report/timeline.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/run/evaluation_file.hpp"
#include "cifar_mpi/run/run_lock.hpp"
#include "page/summaries.hpp"
#include "report/metrics_reader.hpp"

namespace cifar_mpi::page {

/// The content of a run directory. Missing parts are empty; damaged ones are listed in `problems`.
struct Run {
  Directory directory;     ///< opened; all files are read through it
  std::string dir;         ///< its path, as it was given
  std::string name;        ///< for display; unique among several runs
  std::string state_text;  ///< whether it runs, or how it ended: a sentence
  std::string configuration;
  report::Metrics metrics;
  std::vector<double> seconds;     ///< of training up to each report, over all starts, without repeated steps
  double steps_per_epoch = 0.0;    ///< 0: unknown
  std::uint64_t global_batch = 0;  ///< of the last start; 0: unknown
  std::string checkpoint_path;
  std::optional<run::Checkpoint> checkpoint;  ///< the newest that can be read
  std::optional<run::EvaluationFile> evaluation;
  std::optional<report::Timeline> timeline;
  std::optional<Summaries> summaries;
  std::vector<std::string> verdict;   ///< the lines of report::verdict
  std::vector<std::string> problems;  ///< a sentence each
};

/// Throws Error{checkpoint} if `dir` is not a run directory: not a folder, or without any file of a run.
Run load_run(const std::string& dir);

/// Throws Error{checkpoint} if it cannot be read; `without_it` says what cannot be done without it.
report::Timeline load_timeline(const std::string& dir, std::string_view without_it);

/// Names each run by the end of its path that distinguishes it from the others.
void name_runs(std::vector<Run>& runs);

/// Completed steps when the last start began.
std::uint64_t last_start(const Run& run);

/// Images per second, the median of the last ten log lines of the last start: the last one may be of a single
/// step. NaN: unknown.
double recent_speed(const Run& run);

/// Seconds of training until `step`, between the reports by interpolation.
double seconds_at(const Run& run, double step);

}  // namespace cifar_mpi::page
