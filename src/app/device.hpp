#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/comm/collective.hpp"

namespace cifar_mpi::app {

/// The backend and the collectives for --device auto|cpu|cuda. `auto` takes a GPU that can be used once CUDA is proven on one,
/// and where there is no CPU backend.
comm::PlatformFactory platform_for(const std::string& device);

/// Which device that is and why, in one line.
std::string explain_device(const std::string& device);

/// True when that device is a GPU.
bool takes_cuda(const std::string& device);

/// What --all-reduce takes, whatever the device.
std::vector<std::string> collective_names();

/// Throws Error{usage} for a collective of GPUs when that device is none.
void check_collective(const std::string& name, const std::string& device);

/// Versions and abilities of this build, several lines.
std::string describe_build();

}  // namespace cifar_mpi::app
