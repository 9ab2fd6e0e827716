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

/// Whether the machine has a GPU, also one that cannot be used.
bool has_gpu();

/// "NVIDIA H200 0000:1b:00.0; uuid 1f…; driver for CUDA 13.0, CUDA …": the GPU that a rank with these options has, the
/// driver and the libraries as they are at run time. Throws Error{device} when there is none.
std::string identity(const engine::BackendOptions& options);

/// What this build has, in one line, for `--check-build`.
std::string describe();

/// The warning that NCCL may use NVLS, by the option or by the environment, so that runs need not repeat bit for bit;
/// empty when NVLS is off, which is the default.
std::string nvls_note(bool asked_for);

/// Names that the platform's collectives have besides "auto", in every build.
std::span<const comm::CollectiveInfo> collectives();

}  // namespace cifar_mpi::cuda
