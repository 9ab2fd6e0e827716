#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/forecast/links.hpp"
#include "cifar_mpi/report/timeline.hpp"

/// Forecasts a run on more ranks by a replay of its recorded steps.
namespace cifar_mpi::forecast {

constexpr int kMostRanks = 1 << 17;

struct Request {
  std::vector<int> ranks;  ///< 1 to kMostRanks each
  Links links;
  std::string goal = {};    ///< file for export_step; empty: none
  std::string chakra = {};  ///< beginning of the paths of its traces; empty: none
};

/// Text for the terminal: a row for each number of ranks with the recorded batch per rank, then a line with the number of
/// ranks at which more ranks stop paying if the global batch is fixed.
///
/// Every simulated rank repeats, step after step, the recorded work of one rank in one step, drawn at random, so that compute
/// times vary as recorded. It waits for collectives where the step program does. A collective is replayed message by message
/// (forecast/all_reduce.hpp) on nodes with as many ranks as the largest recorded node.
///
/// Processor time that messages take from computation counts as recorded, in proportion to the bytes of a ring. The model
/// leaves out switches that are slower than the links, and the lower efficiency of kernels on small batches.
///
/// Throws Error{usage} if the timeline has no all-reduces to replay: one rank, parameter servers, or no complete step.
std::vector<std::string> forecast(const report::Timeline& timeline, const Request& request);

/// Writes the first simulated step, with the run's own choice of all-reduces, as input of other simulators
/// (forecast/export.hpp): a schedule in GOAL to `goal`, and a trace of Chakra for each rank R to CHAKRA.R.et. Each file is
/// written whole or not at all. Returns text for the terminal.
///
/// Throws Error{usage} as forecast does, if there is not exactly one number of ranks, and if the step is too large for a
/// format; Error{io} if a file cannot be written.
std::vector<std::string> export_step(const report::Timeline& timeline, const Request& request);

}  // namespace cifar_mpi::forecast
