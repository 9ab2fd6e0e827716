#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/selfcheck/self_check.hpp"

namespace cifar_mpi::app {

/// The backend and the collectives for --device auto|cpu|cuda of a program that does not check a GPU: `auto`
/// uses a GPU only if there is no CPU backend.
comm::PlatformFactory platform_for(const std::string& device);

/// True when that device is a GPU.
bool takes_cuda(const std::string& device);

/// The device of a training run, the same on all ranks.
struct RunDevice {
  comm::PlatformFactory platform;
  std::optional<selfcheck::SelfCheck> check;  ///< of a GPU
  std::string sentence;                       ///< which device it is, and why
  bool is_cuda = false;
  bool leaves_gpus = false;  ///< there are GPUs, but they cannot be used
};

/// `auto` uses GPUs, which must then pass a self-check, if every rank can have one, and otherwise the CPU.
/// Under a batch system it does not fall back to the CPU, so that an allocation of GPUs is not wasted: then
/// this throws AgreedError{device} if a GPU exists or was assigned to the job but cannot be used. Parameter
/// servers use no GPU. Collective.
RunDevice choose_device(const config::TrainConfig& config, const comm::World& world);

/// Throws AgreedError{usage} when every rank is a server, and AgreedError{device} when a rank cannot use the GPU of
/// --device cuda. Under a batch system the latter is left to the run, whose record the job reads. Collective.
void require_ranks_and_gpus(const config::TrainConfig& config, const comm::World& world);

/// The name of the batch system of this job, such as "SLURM"; empty if there is none.
std::string batch_system();

/// The values of --all-reduce, for any device.
std::vector<std::string> collective_names();

/// Throws Error{usage} for a GPU collective on another device; `device` names that device.
void check_collective(const std::string& name, bool is_cuda, const std::string& device);

/// Versions and features of this build, on several lines; `nccl_nvls`: the option of that name.
std::string describe_build(bool nccl_nvls);

}  // namespace cifar_mpi::app
