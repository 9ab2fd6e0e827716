#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cifar_mpi::run {

/// What makes a run this run and no other, as (option, value): a checkpoint is resumed only when all are
/// equal. The number of ranks is no part of it.
using Identity = std::vector<std::pair<std::string, std::string>>;

}  // namespace cifar_mpi::run
