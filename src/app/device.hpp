#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/train/self_check.hpp"

namespace cifar_mpi::app {

/// The backend and the collectives for --device auto|cpu|cuda of a program that does not check a GPU: `auto` takes one
/// only where there is no CPU backend.
comm::PlatformFactory platform_for(const std::string& device);

/// True when that device is a GPU.
bool takes_cuda(const std::string& device);

/// The device of a training run, the same on all ranks.
struct RunDevice {
  comm::PlatformFactory platform;
  std::optional<train::SelfCheck> check;  ///< of a GPU
  std::string sentence;                   ///< which device it is, and why
  bool is_cuda = false;
};

/// `auto` takes the GPUs, which then have to prove themselves, when every rank can have one; it gives way to the CPU,
/// but not under a batch system, where an allocation of GPUs must not be spent on CPUs. Collective; throws
/// AgreedError{device} where a GPU is there, or was given to the job, that cannot be used, under a batch system. Parameter
/// servers need no GPU, and take none.
RunDevice choose_device(const train::TrainConfig& config, const comm::World& world);

/// The batch system that this job runs under, "SLURM"; empty when there is none.
std::string batch_system();

/// What --all-reduce takes, whatever the device.
std::vector<std::string> collective_names();

/// Throws Error{usage} for a collective of GPUs when the device is none; `device` says which it is.
void check_collective(const std::string& name, bool is_cuda, const std::string& device);

/// Versions and abilities of this build, several lines; `nccl_nvls`: the option of that name.
std::string describe_build(bool nccl_nvls);

}  // namespace cifar_mpi::app
