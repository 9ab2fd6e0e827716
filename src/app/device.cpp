#include "app/device.hpp"

#include <span>
#include <string_view>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "cifar_mpi/model/net_spec.hpp"

namespace cifar_mpi::app {

namespace {

bool has(std::span<const comm::CollectiveInfo> infos, std::string_view name) {
  return comm::find_collective(infos, name) != nullptr;
}

/// Whether the GPU backend has trained on a GPU. Until it has, `auto` leaves it to those who ask for it.
constexpr bool kCudaIsProven = false;

}  // namespace

bool takes_cuda(const std::string& device) {
  if (device != "auto") return device == "cuda";
  return cuda::unusable().empty() && (kCudaIsProven || !cpu::unusable().empty());
}

comm::PlatformFactory platform_for(const std::string& device) {
  if (takes_cuda(device)) return cuda::make_platform;
  return [](const engine::BackendOptions& options) { return comm::on_host(cpu::make_backend(options)); };
}

std::string explain_device(const std::string& device) {
  if (device != "auto") return concat("device: ", device, ", as asked for");
  if (takes_cuda(device)) return "device: cuda, because a GPU can be used (--device auto)";
  if (cuda::unusable().empty()) {
    return "device: cpu, because the GPU backend has not been tried on a GPU yet; --device cuda takes it "
           "(--device auto)";
  }
  return concat("device: cpu, because CUDA cannot be used: ", cuda::unusable(), " (--device auto)");
}

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const comm::CollectiveInfo& info : comm::collectives()) names.emplace_back(info.name);
  for (const comm::CollectiveInfo& info : cuda::collectives()) {
    if (!has(comm::collectives(), info.name)) names.emplace_back(info.name);
  }
  return names;
}

void check_collective(const std::string& name, const std::string& device) {
  if (takes_cuda(device) || has(comm::collectives(), name) || !has(cuda::collectives(), name)) return;
  std::string choices;
  for (const comm::CollectiveInfo& info : comm::collectives())
    choices += concat(choices.empty() ? "" : ", ", info.name);
  throw Error(ErrorKind::usage, concat("--all-reduce ", name, " sums between GPUs, and this is the CPU (",
                                       explain_device(device), "); choose one of: ", choices));
}

std::string describe_build() {
  std::string text =
      concat("cifar_mpi ", version(), " (", git_revision(), "), ", build_type(), ", ", compiler(), '\n');
  text += concat("MPI         ", comm::World::library(), '\n');
  text += concat("cpu         ", cpu::describe(), '\n');
  text += concat("cuda        ", cuda::describe(), '\n');
  text += "models\n";
  for (const model::ModelInfo& info : model::catalog())
    text += concat("  ", info.name, ": ", info.sentence, '\n');
  text += "collectives\n";
  for (const auto infos : {comm::collectives(), cuda::collectives()}) {
    for (const comm::CollectiveInfo& info : infos) text += concat("  ", info.name, ": ", info.purpose, '\n');
  }
  return text;
}

}  // namespace cifar_mpi::app
