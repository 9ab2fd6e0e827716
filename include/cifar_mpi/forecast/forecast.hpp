#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/forecast/links.hpp"
#include "cifar_mpi/report/timeline.hpp"

/// What a run would do on more ranks, replayed from the steps that were recorded.
namespace cifar_mpi::forecast {

constexpr int kMostRanks = 1 << 17;

struct Request {
  std::vector<int> ranks;  ///< 1 to kMostRanks each
  Links links;
};

/// Lines for people: a row for each number of ranks, with the batch per rank that was recorded; then from where more
/// ranks no longer pay when the global batch is fixed.
///
/// Every simulated rank repeats, step after step, the recorded work of a rank and step that are drawn for it, so the
/// compute times spread as recorded. It waits for collectives where the step program does. A collective runs by its own
/// pattern of messages (`AllReduce`), on nodes with as many ranks as the busiest recorded node.
///
/// Not in the model: switches that are slower than the links they join, time that messages take from computation that
/// runs beside them, and kernels that are less efficient on smaller batches.
///
/// Throws Error{usage} when the timeline has no all-reduces to replay: one rank, parameter servers, or no complete step.
std::vector<std::string> forecast(const report::Timeline& timeline, const Request& request);

}  // namespace cifar_mpi::forecast
