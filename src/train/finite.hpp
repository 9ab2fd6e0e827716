#pragma once

#include <string>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/model/param_table.hpp"
#include "train/step.hpp"

namespace cifar_mpi::train {

/// The name of the first parameter, in forward order, that has a NaN or an infinity in this block of
/// `layout` ("conv1/weights"); empty when all are finite. A pass over the block, in backend memory.
///
/// A loss can be finite where weights are not: ReLU makes zeros of negative infinities, and averages are in
/// no loss.
std::string first_not_finite(engine::Backend& backend, const engine::ParamLayout& layout,
                             const model::ParamTable& params, const Buffer& block);

/// What follows in messages that a run diverged.
inline constexpr const char* kDivergedAdvice =
    "; nothing was written after the last checkpoint. Try a smaller --lr, or --warmup-epochs, in a new "
    "--run-dir";
/// Collective; between steps, after so many. Throws an AgreedError{diverged} unless what a checkpoint would hold is finite.
void require_finite(const Plan& plan, const Device& device, const StateTable& state, std::uint64_t steps);

}  // namespace cifar_mpi::train
