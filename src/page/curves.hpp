#pragma once

#include <vector>

#include "page/chart.hpp"
#include "page/run.hpp"

namespace cifar_mpi::page {

/// The curves of metrics.jsonl: of one run what belongs together in one figure, of several a figure for each quantity with a
/// line for each run.
std::vector<Chart> curves(const std::vector<Run>& runs);

/// Where a run stands at a step, on all axes.
AxisValues place_of(const Run& run, double step);

}  // namespace cifar_mpi::page
