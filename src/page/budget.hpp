#pragma once

#include <string>
#include <vector>

#include "page/run.hpp"

namespace cifar_mpi::page {

/// The utilization of the ranks of a run: the lines of report::verdict; empty if the run has no timeline.
/// `baseline` may be null.
std::vector<std::string> verdict_of(const Run& run, const report::Timeline* baseline);

/// The same for a page: the sentence, and a table of the numbers.
std::string verdict_html(const std::vector<std::string>& lines);

/// Where the time of a step goes on each rank, as bars and as a table, and the time of each task over the ranks.
std::string budget_html(const Run& run);

}  // namespace cifar_mpi::page
