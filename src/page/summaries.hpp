#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "page/chart.hpp"

namespace cifar_mpi::page {

struct Run;

/// A distribution at some steps.
struct Distributions {
  std::string name;                              ///< "conv1/weights"
  std::vector<std::uint64_t> steps;              ///< rising
  std::vector<std::array<double, 5>> quantiles;  ///< by step: least, 5 %, half, 95 %, largest
  std::vector<double> zeros;                     ///< by step, the share of zeros; of activations alone
};

/// What RUN_DIR/summaries.h5 says, by kind.
struct Summaries {
  std::vector<Distributions> variables, gradients, activations;
  Extent image;
  std::vector<std::uint8_t> images;  ///< [n, h, w, c], as training sees them
  std::size_t left_out = 0;          ///< beyond the most that are shown of a kind
};

/// Throws Error{checkpoint} when the file is damaged or is none of ours.
Summaries read_summaries(const std::string& path);

/// Values below which `share` of what was counted lies; `edges` has one more than `counts`. Between edges by
/// interpolation. NaN when nothing was counted.
double quantile(const std::vector<double>& edges, const std::vector<std::uint64_t>& counts, double share);

/// A figure for each distribution, over the run's steps.
std::vector<Chart> distribution_charts(const Run& run, const std::vector<Distributions>& list,
                                       const std::string& kind);
/// One for the zeros of all activations; without series where nothing is known of them.
Chart zeros_chart(const Run& run);

}  // namespace cifar_mpi::page
