#pragma once

#include <string>

#include "cifar_mpi/config/config.hpp"

namespace cifar_mpi::app {

/// The layers of the configured model as a table, for CIFAR-10's images if no dataset was named and none is
/// found. Throws if the named model or dataset is wrong.
std::string describe_model(const config::TrainConfig& config);

}  // namespace cifar_mpi::app
