#include "report/step_summary.hpp"

#include <algorithm>
#include <cmath>
#include <span>

namespace cifar_mpi::report {
namespace {

void make_visible(std::span<const float> image, std::uint8_t* out) {
  const auto [least, most] = std::ranges::minmax_element(image);
  const bool has_negative = *least < 0.0f;
  const float reach = has_negative ? std::max(-*least, *most) : *most;
  const float scale = reach > 0.0f ? (has_negative ? 127.0f : 255.0f) / reach : 0.0f;
  const float offset = has_negative ? 128.0f : 0.0f;
  for (const float value : image) {
    const float shade = std::isfinite(value) ? value * scale + offset : 0.0f;
    *out++ = static_cast<std::uint8_t>(std::clamp(std::round(shade), 0.0f, 255.0f));
  }
}

}  // namespace

InputImages visible_images(const Extent& extent, const std::vector<float>& values) {
  InputImages images{extent, std::vector<std::uint8_t>(values.size())};
  const auto floats = static_cast<std::size_t>(extent.count());
  for (std::size_t at = 0; at < values.size(); at += floats) {
    make_visible(std::span(values).subspan(at, floats), images.pixels.data() + at);
  }
  return images;
}

}  // namespace cifar_mpi::report
