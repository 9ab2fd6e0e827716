#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/roofline.hpp"

namespace cifar_mpi::cuda {

/// The cuda backend with the collectives between GPUs. Throws Error{device} when this binary lacks it or the
/// machine cannot run it.
comm::Platform make_platform(const engine::BackendOptions& options);
std::unique_ptr<engine::Backend> make_backend(const engine::BackendOptions& options);

/// Why this process cannot use a GPU, in a few words; empty if it can.
std::string unusable();

/// Whether the machine has a GPU, even an unusable one.
bool has_gpu();

/// "NVIDIA H200 0000:1b:00.0; uuid 1f…; driver for CUDA 13.0, CUDA …": the GPU of a rank with these options,
/// with the versions of the driver and the libraries at run time. Throws Error{device} when there is none.
std::string identity(const engine::BackendOptions& options);

/// One line about this build, for `--check-build`.
std::string describe();

/// The warning that the option or the environment allows NVLS to NCCL, so that runs may not repeat bit for
/// bit; empty when NVLS is off, which is the default.
std::string nvls_note(bool asked_for);

/// The platform's collectives besides "auto", in every build.
inline std::span<const comm::CollectiveInfo> collectives() {
  static constexpr std::array kInfos = {
      comm::CollectiveInfo{.name = "nccl",
                           .purpose = "between the GPUs of --device cuda, where auto takes it"},
      comm::CollectiveInfo{.name = "doubling",
                           .purpose = "between GPUs NCCL gathers, and each adds in the same tree as on hosts",
                           .fixed_tree = true}};
  return kInfos;
}

/// FLOP/s of a large matrix product in `precision`, which must be resolved (4096³, random values, on the GPU
/// in use), repeated for about `seconds`. Throws Error{device} when there is no GPU.
double measure_peak_flops(engine::Precision precision, double seconds);

/// Bytes per second of a large copy within the GPU, counting bytes read and written.
double measure_copy_rate(double seconds);

/// Quick estimates of both that need little memory, for roofline times that need no precision: sizes grow
/// until one run takes 0.2 ms. A kernel of ours measures the rate of bytes.
engine::RooflineLimits measure_limits(engine::Precision precision);

}  // namespace cifar_mpi::cuda
