#include "cifar_mpi/config/image_sizes.hpp"

#include <algorithm>

#include "cifar_mpi/base/parse_number.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/config/options.hpp"

namespace cifar_mpi::config {
namespace {

/// "24x3", or "32" for the last one.
std::optional<ImageSize> read_image_size(std::string_view text, bool is_last) {
  constexpr double kMostEpochs = 1e9;
  const std::size_t times = std::min(text.find('x'), text.size());
  const auto pixels = parse_number<int>(text.substr(0, times));
  if (!pixels || *pixels < 1 || is_last != (times == text.size())) return std::nullopt;
  if (is_last) return ImageSize{*pixels};
  const auto epochs = parse_number<double>(text.substr(times + 1));
  if (!epochs || !(*epochs > 0.0) || *epochs > kMostEpochs) return std::nullopt;
  return ImageSize{*pixels, *epochs};
}

}  // namespace

std::optional<std::vector<ImageSize>> read_image_sizes(std::string_view text) {
  std::vector<ImageSize> sizes;
  if (text == "full") return sizes;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const auto size = read_image_size(text.substr(from, end - from), end == text.size());
    if (!size || (!sizes.empty() && sizes.back().pixels == size->pixels)) return std::nullopt;
    sizes.push_back(*size);
    from = end + 1;
  }
  return sizes;
}

std::string describe(const std::vector<ImageSize>& sizes) {
  std::string text;
  for (const ImageSize& size : sizes) {
    text += concat(text.empty() ? "" : ",", size.pixels);
    if (size.epochs > 0.0) text += concat('x', exact(size.epochs));
  }
  return text.empty() ? "full" : text;
}

}  // namespace cifar_mpi::config
