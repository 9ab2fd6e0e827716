#pragma once

#include <string>
#include <vector>

#include "page/chart.hpp"
#include "page/run.hpp"

namespace cifar_mpi::page {

/// Starts, resumes, stops, faults and ends of a run, as marks on the axes of its curves: one for each step where something
/// happened, also where only the next start, or the record of the end, told of it.
std::vector<Mark> marks_of(const Run& run);

/// The same as a table of a page, with times and ranks; empty when nothing is known.
std::string events_html(const std::vector<Run>& runs);

}  // namespace cifar_mpi::page
