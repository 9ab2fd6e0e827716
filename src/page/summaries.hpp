#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "page/chart.hpp"
#include "report/step_summary.hpp"

namespace cifar_mpi::page {

struct Run;

/// A distribution at some steps.
struct Distributions {
  std::string name;                              ///< "conv1/weights"
  std::vector<std::uint64_t> steps;              ///< rising
  std::vector<std::array<double, 5>> quantiles;  ///< by step: least, 5 %, half, 95 %, largest
  std::vector<double> zeros;                     ///< by step, the share of zeros; of activations
};

/// What RUN_DIR/summaries.h5 says, by kind.
struct Summaries {
  std::vector<Distributions> variables, gradients, activations;
  report::InputImages images;
  std::string lacking;       ///< which activations there are not, in words
  std::size_t left_out = 0;  ///< beyond the most that are shown of a kind
};

/// Throws Error{checkpoint} when the file is damaged or is none of ours.
Summaries read_summaries(const DirectoryEntry& file);

/// The value below which `share` of what was counted lies; between edges by interpolation. NaN when nothing was
/// counted.
double quantile(const engine::ValueCounts& counts, double share);

/// A figure for each distribution, over the run's steps.
std::vector<Chart> distribution_charts(const Run& run, const std::vector<Distributions>& list,
                                       const std::string& kind);
/// One for the zeros of all activations; without series where nothing is known of them.
Chart zeros_chart(const Run& run);

}  // namespace cifar_mpi::page
