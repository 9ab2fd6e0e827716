#pragma once

#include <string>

#include "cifar_mpi/train/config.hpp"

namespace cifar_mpi::app {

/// The layers of the model that this configuration trains, as a table; for CIFAR-10's images where no dataset
/// was named and none is found. Throws what naming a wrong model or dataset throws.
std::string describe_model(const train::TrainConfig& config);

}  // namespace cifar_mpi::app
