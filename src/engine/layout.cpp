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

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::automatic:
      return "automatic";
    case Precision::fp32:
      return "fp32";
    case Precision::tf32:
      return "tf32";
    case Precision::bf16:
      return "bf16";
  }
  throw std::logic_error("to_string: not a Precision");
}

}  // namespace cifar_mpi::engine
