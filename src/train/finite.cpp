#include "train/finite.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::train {
namespace {

constexpr std::size_t kFloatsAtOnce = std::size_t{1} << 16;  // floats; a copy of so many stays in the cache

/// Only an exponent of all ones carries into the sign bit. No branch, so that compilers vectorize it.
bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7F800000, kOne = 0x00800000, kCarry = 0x80000000;
  std::uint32_t seen = 0;
  for (const float value : values) seen |= (std::bit_cast<std::uint32_t>(value) & kExponent) + kOne;
  return (seen & kCarry) == 0;
}

}  // namespace

std::string first_not_finite(engine::Backend& backend, const engine::ParamLayout& layout,
                             const model::ParamTable& params, const Buffer& block) {
  std::vector<float> piece(std::min(kFloatsAtOnce, layout.floats));
  for (std::size_t p = params.size(); p-- > 0;) {  // the table is in the order in which backward finishes
    const auto& entry = layout.entries[p];
    for (std::size_t at = 0; at < entry.floats; at += piece.size()) {
      const std::span<float> part = std::span(piece).first(std::min(piece.size(), entry.floats - at));
      backend.copy(reinterpret_cast<std::byte*>(part.data()),
                   reinterpret_cast<const std::byte*>(block.as<const float>() + entry.offset + at),
                   part.size_bytes());
      if (!all_finite(part)) return params[p].name;
    }
  }
  return {};
}

void require_finite(const Plan& plan, const Device& device, const StateTable& state, std::uint64_t steps) {
  std::optional<Error> mine;
  const std::string what = state.first_not_finite(*device.backend, device.layout, plan.network.params);
  if (!what.empty()) {
    mine.emplace(ErrorKind::diverged,
                 concat("diverged: after step ", steps, ' ', what, " are not finite", kDivergedAdvice));
  }
  plan.world.agree(mine);
}

}  // namespace cifar_mpi::train
