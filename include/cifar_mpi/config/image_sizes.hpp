#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The sizes of training images over a run, --image-size.
namespace cifar_mpi::config {

/// Images of so many pixels on each side, for so many epochs.
struct ImageSize {
  int pixels = 0;
  double epochs = 0.0;  ///< 0: to the end of the run
};

/// "24x3,28x3,32": sizes with their epochs, the last without; "full" for none.
std::string describe(const std::vector<ImageSize>& sizes);
/// The inverse of `describe`. Nothing for other text, for epochs that are not above 0, and where a size follows itself.
std::optional<std::vector<ImageSize>> read_image_sizes(std::string_view text);

/// From step `from` on training images are downsampled to this side.
struct ImageStage {
  std::uint64_t from = 0;
  int pixels = 0;
};

}  // namespace cifar_mpi::config
