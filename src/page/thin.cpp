#include <algorithm>
#include <cmath>
#include <limits>

#include "page/chart.hpp"

namespace cifar_mpi::page {
namespace {

Thinned sum_up(std::span<const double> values, std::size_t first, std::size_t end) {
  Thinned point;
  point.index = end - 1;
  point.low = std::numeric_limits<double>::infinity();
  point.high = -point.low;
  double sum = 0.0;
  std::size_t count = 0;
  for (const double value : values.subspan(first, end - first)) {
    if (std::isnan(value)) continue;
    point.low = std::min(point.low, value);
    point.high = std::max(point.high, value);
    sum += value;
    ++count;
  }
  if (count == 0) point.low = point.high = std::nan("");
  // Rounding may move the mean outside the range of the values.
  point.mean = count == 0 ? point.low : std::clamp(sum / static_cast<double>(count), point.low, point.high);
  return point;
}

}  // namespace

std::vector<Thinned> thin(std::span<const double> values, std::size_t most) {
  std::vector<Thinned> points;
  const std::size_t n = values.size();
  if (n <= most) {
    for (std::size_t i = 0; i < n; ++i) points.push_back(sum_up(values, i, i + 1));
    return points;
  }
  const std::size_t rows = n - 1, buckets = most - 1;
  for (std::size_t b = 0; b < buckets; ++b)
    points.push_back(sum_up(values, b * rows / buckets, (b + 1) * rows / buckets));
  points.push_back(sum_up(values, n - 1, n));
  return points;
}

}  // namespace cifar_mpi::page
