#pragma once

#include <memory>
#include <string>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// The cpu backend. Throws Error{device} when this binary was built without it or the machine cannot run it.
std::unique_ptr<engine::Backend> make_backend(const engine::BackendOptions& options);

/// Why this process cannot use the cpu backend, in a few words; empty when it can.
std::string unusable();

/// What this build has, in one line, for `--check-build`.
std::string describe();

}  // namespace cifar_mpi::cpu
