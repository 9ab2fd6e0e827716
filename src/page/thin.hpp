#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace cifar_mpi::page {

/// A point of a curve that represents consecutive values.
struct Thinned {
  std::size_t index = 0;  ///< of the last of them
  double low = 0.0;
  double mean = 0.0;
  double high = 0.0;
};

/// At most `most` (2 at least) points for any number of values: each represents the same number of values,
/// except the last, which is the last value alone. Up to `most` values are all kept. NaN values are ignored;
/// a point of only such values is NaN.
std::vector<Thinned> thin(std::span<const double> values, std::size_t most);

}  // namespace cifar_mpi::page
