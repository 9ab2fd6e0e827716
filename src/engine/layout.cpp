#include "cifar_mpi/engine/layout.hpp"

#include <algorithm>
#include <stdexcept>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::engine {

void append(ParamLayout& layout, std::size_t floats, model::ParamRole role) {
  constexpr std::size_t kFloatsPerLine = 16;
  const std::size_t rounded = (floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  layout.entries.push_back({layout.floats, rounded});
  layout.floats += rounded;
  if (role == model::ParamRole::trained) layout.trained_floats = layout.floats;
  if (role == model::ParamRole::running) layout.running_floats += rounded;
}

std::vector<Segment> segments_of(std::size_t begin, std::size_t end, const model::ParamTable& params,
                                 const ParamLayout& layout) {
  if (layout.entries.size() != params.size()) {
    throw std::logic_error(concat("update: ", params.size(), " parameters, but ", layout.entries.size(),
                                  " entries in the layout"));
  }
  std::vector<Segment> segments;
  std::size_t covered = begin;
  for (std::size_t p = 0; p < params.size(); ++p) {
    const std::size_t first = std::max(layout.entries[p].offset, begin);
    const std::size_t last = std::min(layout.entries[p].offset + layout.entries[p].floats, end);
    if (first >= last) continue;
    if (first != covered || first % 16 != 0 || last % 16 != 0) {
      throw std::logic_error(concat("update: [", begin, ", ", end,
                                    ") is not made of whole lines of parameters; ", params[p].name, " has [",
                                    first, ", ", last, ") of it"));
    }
    covered = last;
    segments.push_back({first, last, params[p].weight_decay, params[p].rate_factor, params[p].steps,
                        model::rate_role(params, p) == model::RateRole::hidden_matrix});
  }
  if (covered != end)
    throw std::logic_error(concat("update: [", covered, ", ", end, ") belongs to no parameter"));
  return segments;
}

}  // namespace cifar_mpi::engine
