#include "cifar_mpi/engine/layout.hpp"

#include <stdexcept>
#include <string_view>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::engine {

void append(ParamLayout& layout, std::size_t floats, model::ParamRole role) {
  constexpr std::size_t kFloatsPerLine = 16;
  const std::size_t rounded = (floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  layout.entries.push_back({layout.floats, rounded});
  layout.floats += rounded;
  if (role == model::ParamRole::trained) layout.trained_floats = layout.floats;
  if (role == model::ParamRole::running) layout.running_floats += rounded;
}

}  // namespace cifar_mpi::engine
