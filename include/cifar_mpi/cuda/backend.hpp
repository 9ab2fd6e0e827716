#pragma once

#include <memory>
#include <span>
#include <string>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cuda {

/// The cuda backend, and with it the collectives between GPUs. Throws Error{device} when this binary was built
/// without it or the machine cannot run it.
comm::Platform make_platform(const engine::BackendOptions& options);
std::unique_ptr<engine::Backend> make_backend(const engine::BackendOptions& options);

/// Why this process cannot use a GPU, in a few words; empty when it can.
std::string unusable();

/// What this build has, in one line, for `--check-build`.
std::string describe();

/// Names that the platform's collectives have besides "auto", in every build.
std::span<const comm::CollectiveInfo> collectives();

}  // namespace cifar_mpi::cuda
