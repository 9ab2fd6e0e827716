#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/forecast/forecast.hpp"

/// What a run directory tells people: a few lines of text, and a page that a browser opens without a network.
namespace cifar_mpi::page {

struct ReportRequest {
  std::vector<std::string> run_dirs;  ///< of the first everything is told, the others are drawn over it
  std::string html;                   ///< the page; empty: RUN_DIR/report.html of the first
  std::string
      baseline;  ///< a run with fewer ranks, with which the scaling of computation is compared; empty: none
  std::optional<forecast::Request> forecast;  ///< of the first run on more ranks
};

/// Tells `log` how the runs stand, then writes the page, whole or not at all. A run may be going on. Files in a run
/// directory that are missing or damaged are told, on the page too, and the rest is shown; nothing in a run directory is
/// changed but the page. Throws Error{checkpoint} for what is no run directory, before anything is told, and Error{io}
/// when the page cannot be written.
void report_runs(const ReportRequest& request, const Log& log);

}  // namespace cifar_mpi::page
