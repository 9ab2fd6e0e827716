#include "app/device.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "cifar_mpi/model/net_spec.hpp"

namespace cifar_mpi::app {

namespace {

bool has(std::span<const comm::CollectiveInfo> infos, std::string_view name) {
  return comm::find_collective(infos, name) != nullptr;
}

comm::Platform cpu_platform(const engine::BackendOptions& options) {
  return comm::on_host(cpu::make_backend(options));
}

/// Servers keep their part of the weights on the host.
comm::Platform cuda_platform(const engine::BackendOptions& options) {
  return options.serves ? cpu_platform(options) : cuda::make_platform(options);
}

/// Whether this rank is a parameter server.
bool serves(const config::TrainConfig& config, const comm::World& world) {
  return config.update == comm::UpdateKind::server && world.rank() >= world.size() - config.servers;
}

/// Why this rank cannot use the GPU that it needs; empty when it can, or needs none.
std::string what_lacks(const config::TrainConfig& config, const comm::World& world) {
  return serves(config, world) ? std::string() : cuda::unusable();
}

/// Why the ranks of this host cannot have one GPU each; empty when they can, or need none. Collective.
std::string what_is_crowded(const config::TrainConfig& config, const comm::World& world) {
  std::string gpu, failed;
  if (!serves(config, world)) {
    const auto& hosts = world.hosts();
    engine::BackendOptions options;
    options.local_rank =
        static_cast<int>(std::count(hosts.begin(), hosts.begin() + world.rank(), world.host()));
    options.local_ranks = world.node_size();
    options.share_gpus = true;  // sharing is detected here
    try {
      gpu = cuda::identity(options);
    } catch (const Error& error) {
      failed = error.what();
    }
  }
  const std::vector<std::string> gpus = world.gather(gpu);
  if (!failed.empty() || gpu.empty() || config.share_gpus) return failed;
  std::set<std::string> here;
  std::size_t ranks = 0;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    if (world.hosts()[rank] != world.host() || gpus[rank].empty()) continue;
    here.insert(gpus[rank]);
    ++ranks;
  }
  if (ranks <= here.size()) return {};
  return concat(ranks, " ranks of ", world.host(), " have ", counted(here.size(), "GPU"),
                "; start one rank per GPU (-np ", here.size(),
                " on one host), or let ranks share a GPU for a test with --share-gpus");
}

/// The lowest rank that lacks something, and what it lacks, on all ranks; −1 if none does.
struct Unable {
  int rank = -1;
  std::string why;
};
Unable find_unable(const comm::World& world, const std::string& mine) {
  const std::vector<std::string> all = world.gather(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) return {static_cast<int>(rank), all[rank]};
  }
  return {};
}

/// Whether there are GPUs that the run would leave idle: this machine's, or those that SLURM assigned to the
/// job, even on a node without a driver.
bool gpus_stay_idle() {
  const char* const given = std::getenv("SLURM_GPUS_ON_NODE");
  return cuda::has_gpu() || (given != nullptr && std::atoi(given) > 0);
}

selfcheck::SelfCheck self_check(bool asked_for) {
  selfcheck::SelfCheck check;
  check.identity = cuda::identity;
  check.measure_limits = cuda::measure_limits;
  if (cpu::unusable().empty()) {
    check.judge = cpu_platform;
    if (!asked_for && batch_system().empty()) check.instead = cpu_platform;
  }
  check.asked_for = asked_for;
  return check;
}

}  // namespace

std::string batch_system() {
  static constexpr std::pair<const char*, const char*> kJobs[] = {
      {"SLURM_JOB_ID", "SLURM"}, {"PBS_JOBID", "PBS"}, {"LSB_JOBID", "LSF"}, {"FLUX_JOB_ID", "Flux"}};
  for (const auto& [variable, name] : kJobs) {
    if (const char* const job = std::getenv(variable); job != nullptr && *job != '\0') return name;
  }
  return {};
}

bool takes_cuda(const std::string& device) {
  if (device != "auto") return device == "cuda";
  return !cpu::unusable().empty() && cuda::unusable().empty();
}

comm::PlatformFactory platform_for(const std::string& device) {
  if (takes_cuda(device)) return cuda_platform;
  return cpu_platform;
}

RunDevice choose_device(const config::TrainConfig& config, const comm::World& world) {
  RunDevice cpu{cpu_platform, {}, "device: cpu, as requested"};
  if (config.device == "cpu") return cpu;
  if (config.device == "cuda") return {cuda_platform, self_check(true), "device: cuda, as requested", true};
  if (config.conv == engine::ConvMethod::fft || config.conv == engine::ConvMethod::winograd) {
    cpu.sentence = concat("device: cpu, which alone has --conv ", to_string(config.conv), " (--device auto)");
    return cpu;
  }
  std::string lacks = what_lacks(config, world);
  Unable unable = find_unable(world, lacks);
  if (unable.rank < 0) {
    lacks = what_is_crowded(config, world);
    unable = find_unable(world, lacks);
  }
  if (unable.rank < 0)
    return {cuda_platform, self_check(false), "device: cuda, because a GPU can be used (--device auto)",
            true};
  std::string why = unable.why;
  const bool computes = !serves(config, world);
  const bool some = world.any(computes && lacks.empty());
  if (some)
    why += concat(" (on rank ", unable.rank, ", host ", world.hosts()[static_cast<std::size_t>(unable.rank)],
                  ')');
  cpu.leaves_gpus = world.any(computes && gpus_stay_idle());
  if (cpu.leaves_gpus && !batch_system().empty()) {
    throw comm::AgreedError(ErrorKind::device, "CUDA cannot be used: ", why, "; this ", batch_system(),
                            " job has GPUs, and --device cpu leaves them idle on purpose");
  }
  cpu.sentence = concat("device: cpu, because CUDA cannot be used: ", why, " (--device auto)");
  return cpu;
}

void require_ranks_and_gpus(const config::TrainConfig& config, const comm::World& world) {
  world.together([&] {
    config::count_workers(config, world.size());
    if (config.device != "cuda" || !batch_system().empty()) return;
    if (const std::string lacks = what_lacks(config, world); !lacks.empty())
      throw Error(ErrorKind::device, "--device cuda: ", lacks, "; use --device cpu");
  });
}

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const comm::CollectiveInfo& info : comm::collectives()) names.emplace_back(info.name);
  for (const comm::CollectiveInfo& info : cuda::collectives()) {
    if (!has(comm::collectives(), info.name)) names.emplace_back(info.name);
  }
  return names;
}

void check_collective(const std::string& name, bool is_cuda, const std::string& device) {
  if (is_cuda || has(comm::collectives(), name) || !has(cuda::collectives(), name)) return;
  std::string choices;
  for (const comm::CollectiveInfo& info : comm::collectives())
    choices += concat(choices.empty() ? "" : ", ", info.name);
  throw Error(ErrorKind::usage, "--all-reduce ", name, " sums between GPUs, and this is the CPU (", device,
              "); choose one of: ", choices);
}

std::string describe_build(bool nccl_nvls) {
  std::string text =
      concat("cifar_mpi ", version(), " (", git_revision(), "), ", build_type(), ", ", compiler(), '\n');
  text += concat("MPI         ", comm::World::library(), '\n');
  text += concat("cpu         ", cpu::describe(), '\n');
  text += concat("cuda        ", cuda::describe(), '\n');
  if (const std::string note = cuda::nvls_note(nccl_nvls); !note.empty())
    text += concat("            ", note, '\n');
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
