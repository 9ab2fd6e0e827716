#pragma once

#include <vector>

#include "page/chart.hpp"
#include "page/run.hpp"

namespace cifar_mpi::page {

/// The curves of metrics.jsonl: for one run, figures of related quantities; for several runs, a figure for
/// each quantity with a line for each run.
std::vector<Chart> curves(const std::vector<Run>& runs);

/// The position of a step of a run on all axes.
AxisValues place_of(const Run& run, double step);

}  // namespace cifar_mpi::page
