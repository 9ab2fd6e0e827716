#pragma once

#include <string>
#include <vector>

#include "page/chart.hpp"
#include "page/run.hpp"

namespace cifar_mpi::page {

/// Starts, resumes, stops, faults and ends of a run, as marks on the axes of its curves: one for each step
/// with an event, also if only the next start or the exit record shows it.
std::vector<Mark> marks_of(const Run& run);

/// The same as a table of a page, with times and ranks; empty without events.
std::string events_html(const std::vector<Run>& runs);

}  // namespace cifar_mpi::page
