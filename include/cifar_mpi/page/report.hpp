#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/forecast/forecast.hpp"

/// Reports on run directories: a few lines of text, and a page that a browser opens without a network.
namespace cifar_mpi::page {

struct ReportRequest {
  std::vector<std::string> run_dirs;  ///< the first is reported in full, the others are drawn over it
  std::string html;                   ///< the page; empty: RUN_DIR/report.html of the first
  std::string baseline;               ///< a run with fewer ranks, for computation scaling; empty: none
  std::optional<forecast::Request> forecast = {};  ///< of the first run, on more ranks
};

/// Writes the state of the runs to `log`, then writes the page, atomically. A run may be active. Missing or damaged
/// files are reported, on the page too, and the rest is shown; only the page is changed. Throws Error{checkpoint} for a
/// folder that is not a run directory, before any output, and Error{io} if the page cannot be written.
void report_runs(const ReportRequest& request, const Log& log);

}  // namespace cifar_mpi::page
