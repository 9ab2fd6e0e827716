#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace cifar_mpi::page {

/// Some values in a row, as one point of a curve.
struct Thinned {
  std::size_t index = 0;  ///< of the last of them
  double low = 0.0;
  double mean = 0.0;
  double high = 0.0;
};

/// At most `most` (2 at least) points for any number of values: each stands for as many as the others, but the last,
/// which is the last value alone. Up to `most` values are all kept. Values that are NaN do not count; a point without
/// others has NaN.
std::vector<Thinned> thin(std::span<const double> values, std::size_t most);

}  // namespace cifar_mpi::page
