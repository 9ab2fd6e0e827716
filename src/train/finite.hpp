#pragma once

#include <string>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/model/param_table.hpp"

namespace cifar_mpi::train {

/// The name of the first parameter, in forward order, that has a NaN or an infinity in this block of
/// `layout` ("conv1/weights"); empty when all are finite. A pass over the block, in backend memory.
///
/// A loss can be finite where weights are not: ReLU makes zeros of negative infinities, and averages are in
/// no loss.
std::string first_not_finite(engine::Backend& backend, const engine::ParamLayout& layout,
                             const model::ParamTable& params, const Buffer& block);

}  // namespace cifar_mpi::train
