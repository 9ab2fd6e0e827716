#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cifar_mpi/base/text.hpp"
#include "page/bitmap.hpp"
#include "page/sections.hpp"
#include "page/text.hpp"

namespace cifar_mpi::page {
namespace {

/// Weights [height, width, in, out].
struct Filters {
  const run::NamedTensor& tensor;
  int size(int axis) const { return static_cast<int>(tensor.shape[axis]); }
  float at(int y, int x, int in, int out) const {
    return tensor.values[static_cast<std::size_t>(((y * size(1) + x) * size(2) + in) * size(3) + out)];
  }
};

/// The convolution that reads the image is the one with the fewest inputs.
const run::NamedTensor* first_convolution(const run::Checkpoint& checkpoint) {
  constexpr std::int64_t kMostPixels = 32, kMostFilters = 1024;
  const run::NamedTensor* found = nullptr;
  for (const run::NamedTensor& tensor : checkpoint.state[optim::StateRole::average]) {
    const auto& shape = tensor.shape;
    const bool drawable = shape.rank() == 4 && shape[0] >= 1 && shape[0] <= kMostPixels && shape[1] >= 1 &&
                          shape[1] <= kMostPixels && shape[2] >= 1 && shape[2] <= 4 && shape[3] >= 1 &&
                          shape[3] <= kMostFilters;
    if (drawable && (found == nullptr || shape[2] < found->shape[2])) found = &tensor;
  }
  return found;
}

struct Range {
  float low = 0.0f;
  float high = 0.0f;
  double norm = 0.0;
};

Range range_of(const Filters& filters, int out) {
  Range range{filters.at(0, 0, 0, out), filters.at(0, 0, 0, out), 0.0};
  double squares = 0.0;
  for (int y = 0; y < filters.size(0); ++y) {
    for (int x = 0; x < filters.size(1); ++x) {
      for (int in = 0; in < filters.size(2); ++in) {
        const float value = filters.at(y, x, in, out);
        range.low = std::min(range.low, value);
        range.high = std::max(range.high, value);
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
    }
  }
  range.norm = std::sqrt(squares);
  return range;
}

/// Each filter has its own scale: its least value is black, its largest is full brightness.
Bitmap draw(const Filters& filters, int out) {
  const Range range = range_of(filters, out);
  const float scale = range.high > range.low ? 255.0f / (range.high - range.low) : 0.0f;
  const bool colours = filters.size(2) >= 3;
  Bitmap bitmap(filters.size(1), filters.size(0));
  for (int y = 0; y < bitmap.height(); ++y) {
    for (int x = 0; x < bitmap.width(); ++x) {
      const auto shade = [&](int in) {
        return static_cast<std::uint8_t>(
            std::clamp(scale * (filters.at(y, x, in, out) - range.low), 0.0f, 255.0f));
      };
      bitmap.set(x, y, shade(0), shade(colours ? 1 : 0), shade(colours ? 2 : 0));
    }
  }
  return bitmap;
}

std::string table_of(const Filters& filters) {
  std::string rows;
  for (int out = 0; out < filters.size(3); ++out) {
    const Range range = range_of(filters, out);
    rows += concat("<tr><th scope=\"row\">", out + 1, "</th><td>", figure(range.low), "</td><td>",
                   figure(range.high), "</td><td>", figure(range.norm), "</td></tr>");
  }
  std::string head;
  for (const char* const name : {"filter", "least weight", "largest", "norm"}) head += column(name);
  return concat("<details><summary>Table: filters</summary>", table_html("Table: filters", head, rows),
                "</details>");
}

}  // namespace

std::string filters_html(const Run& run) {
  const run::NamedTensor* const tensor = run.checkpoint ? first_convolution(*run.checkpoint) : nullptr;
  if (tensor == nullptr || !std::ranges::all_of(tensor->values, [](float v) { return std::isfinite(v); }))
    return {};
  const Filters filters{*tensor};
  const std::string words =
      concat(filters.size(3), " filters of ", tensor->name, ", ", filters.size(0), "x", filters.size(1),
             " pixels and ", filters.size(2), " channels each, averaged weights of step ",
             run.checkpoint->progress.step);
  std::string pictures;
  for (int out = 0; out < filters.size(3); ++out)
    pictures += concat("<img class=\"pixels\" alt=\"\" src=\"", draw(filters, out).address(), "\">");
  return concat("<figure><figcaption><p class=\"note\">", html(words),
                "; each has its own scale; they follow row by row.</p></figcaption><div class=\"filters\" "
                "role=\"img\" aria-label=\"",
                html(words), "\">", pictures, "</div>", table_of(filters), "</figure>");
}

}  // namespace cifar_mpi::page
