#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/model/param_table.hpp"
#include "cifar_mpi/run/checkpoint.hpp"

/// A new run that begins with the weights of another one.
namespace cifar_mpi::run {

/// Replaces the values of `initial`, tensors in the order of `params`, with the averages of the checkpoint at
/// `path` and the running statistics that belong to them, with which its test accuracy was measured. Names
/// and shapes must match; the model's name need not.
///
/// The layer `classifier` may have another number of classes, the last extent of its tensors; then its
/// tensors keep their initial values. An empty name: no layer may differ.
///
/// Returns a description for the checkpoint and the log, without folders: "step_000000781.h5, step 781, test
/// accuracy 59.50 %, content hash 0123456789abcdef". Throws Error{checkpoint} as `read_checkpoint` does, and
/// naming the first tensor, in forward order, that differs; `initial` is then unchanged.
std::string initialize_from(const std::string& path, const model::ParamTable& params,
                            std::string_view classifier, std::vector<NamedTensor>& initial,
                            const Log& log = Log());

}  // namespace cifar_mpi::run
