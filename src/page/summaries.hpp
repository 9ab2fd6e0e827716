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

/// The distribution of a tensor's values at some steps.
struct Distributions {
  std::string name;                              ///< "conv1/weights"
  std::vector<std::uint64_t> steps;              ///< ascending
  std::vector<std::array<double, 5>> quantiles;  ///< by step: least, 5 %, half, 95 %, largest
  std::vector<double> zeros;                     ///< by step, the share of zeros; of activations
};

/// The content of RUN_DIR/summaries.h5, by kind.
struct Summaries {
  std::vector<Distributions> variables, gradients, activations;
  report::InputImages images;
  std::string lacking;       ///< a text: which activations are missing
  std::size_t left_out = 0;  ///< above the limit of each kind
};

/// Throws Error{checkpoint} if the file is damaged or not one of ours.
Summaries read_summaries(const DirectoryEntry& file);

/// The quantile `share` of the counted values, interpolated between edges. NaN if no value was counted.
double quantile(const engine::ValueCounts& counts, double share);

/// A figure for each distribution, over the run's steps.
std::vector<Chart> distribution_charts(const Run& run, const std::vector<Distributions>& list,
                                       const std::string& kind);
/// One figure for the zeros of all activations; without series if they are unknown.
Chart zeros_chart(const Run& run);

}  // namespace cifar_mpi::page
