#include "cifar_mpi/base/shape.hpp"

namespace cifar_mpi {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t d : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(d);
  return text + "]";
}

std::string to_string(const Extent& extent) {
  return std::to_string(extent.height) + "x" + std::to_string(extent.width) + "x" +
         std::to_string(extent.channels);
}

}  // namespace cifar_mpi
