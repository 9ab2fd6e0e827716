#include "cuda/device.hpp"

#include <fmt/core.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "cuda/control.hpp"
#include "cuda/device_choice.hpp"
#include "cuda/handles.hpp"

namespace cifar_mpi::cuda {
namespace {

constexpr double kMiB = 1 << 20;
/// The biases of any layer.
constexpr std::size_t kNanBytes = std::size_t{1} << 18;

/// 13000 → "13.0"
std::string cuda_version(int number) { return concat(number / 1000, '.', number % 1000 / 10); }

int visible_devices() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "counting the GPUs");
  return count;
}

/// 91900 → "9.19.0", as cuDNN, cuBLASLt and NCCL count.
std::string library_version(std::size_t number) {
  return concat(number / 10000, '.', number / 100 % 100, '.', number % 100);
}

/// "580.95.05 ", the driver's own version if the kernel reports it: the runtime reports only its CUDA version.
std::string driver_number() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool number = word.find_first_not_of("0123456789.") == std::string::npos;
    if (number && word.find('.') != std::string::npos) return word + ' ';
  }
  return {};
}

/// Why cuBLASLt cannot be loaded; empty if it can. Loads it: cuDNN needs it too, and might not find it.
std::string why_no_blas() {
  try {
    static_cast<void>(cublasLtGetVersion());
    return {};
  } catch (const Error& missing) {
    return missing.what();
  }
}

void require_usable() {
  if (const std::string reason = unusable(); !reason.empty()) {
    throw Error(ErrorKind::device, "--device cuda: ", reason, "; use --device cpu");
  }
}

int choose(const engine::BackendOptions& options) {
  return choose_device({options.local_rank, options.local_ranks, visible_devices(), options.share_gpus});
}

std::uint64_t pci_number_of(const cudaDeviceProp& properties) {
  const auto domain = static_cast<std::uint64_t>(properties.pciDomainID);
  const auto bus = static_cast<std::uint64_t>(properties.pciBusID);
  return domain << 16 | bus << 8 | static_cast<std::uint64_t>(properties.pciDeviceID);
}

/// The hash of the UUID of a GPU, or of a part of one.
std::uint64_t hash_of(const cudaDeviceProp& properties) {
  return hash_bytes(std::as_bytes(std::span(properties.uuid.bytes)));
}

/// Kernels with smaller numbers run first. Side lanes must not delay the compute lane, and the comm lane, which other
/// ranks wait for, comes before both.
int priority_of(engine::LaneId lane, int least, int greatest) {
  if (lane == engine::kComm) return greatest;
  return lane == engine::kCompute ? std::min(greatest + 1, least) : least;
}

bool unwinding() { return std::uncaught_exceptions() > 0; }

}  // namespace

std::string unusable() {
  int driver = 0, runtime = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "no NVIDIA driver";
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (status == cudaErrorInsufficientDriver) {
    return concat("the NVIDIA driver is for CUDA ", cuda_version(driver), ", this build needs ",
                  cuda_version(runtime));
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return visible != nullptr ? concat("no GPU is visible (CUDA_VISIBLE_DEVICES is '", visible, "')")
                              : "no GPU";
  }
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return why_no_blas();
}

std::string pci_text(std::uint64_t number) {
  return fmt::format("{:04x}:{:02x}:{:02x}.0", number >> 16, number >> 8 & 0xff, number & 0xff);
}

std::string library_versions() {
  int runtime = 0, nccl = 0;
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  static_cast<void>(ncclGetVersion(&nccl));
  return concat("CUDA ", cuda_version(runtime), ", cuDNN ", library_version(cudnnGetVersion()), ", cuBLASLt ",
                why_no_blas().empty() ? library_version(cublasLtGetVersion()) : "missing", ", NCCL ",
                library_version(static_cast<std::size_t>(nccl)));
}

bool has_gpu() {
  int driver = 0, count = 0;
  // The runtime reports the same for a missing driver as for an old one.
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return false;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  return status == cudaErrorInsufficientDriver || (status == cudaSuccess && count > 0);
}

std::string identity(const engine::BackendOptions& options) {
  require_usable();
  const int ordinal = choose(options);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), "asking what the GPU is");
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "asking for the driver");
  return concat(properties.name, ' ', pci_text(pci_number_of(properties)), "; uuid ",
                fmt::format("{:x}", hash_of(properties)), "; driver ", driver_number(), "for CUDA ",
                cuda_version(driver), "; ", library_versions());
}

Device::Device(const engine::BackendOptions& options) {
  require_usable();
  ordinal_ = choose(options);
  check(cudaSetDevice(ordinal_), "choosing a GPU");
  check(cudaGetDeviceProperties(&properties_, ordinal_), "asking what the GPU is");
  if (const std::string words = missing_code(); !words.empty()) {
    throw Error(ErrorKind::device, "--device cuda: this binary has no code for ", properties_.name,
                ", compute capability ", properties_.major, '.', properties_.minor, " (", words, "); ",
                build_advice(10 * properties_.major + properties_.minor, CUDART_VERSION),
                ", or use --device cpu");
  }
  cudaStream_t made = nullptr;
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "making a stream");
  copies_ = Stream(made);
}

/// During an exception, a kernel may be waiting for a lost rank, and freeing would wait for that kernel. The process ends
/// anyway.
Device::~Device() {
  if (!unwinding()) return;
  static_cast<void>(blas_.release());
  dnn_.abandon();
  static_cast<void>(copies_.release());
  for (Stream& stream : streams_) static_cast<void>(stream.release());
}

std::uint64_t Device::pci_number() const { return pci_number_of(properties_); }

std::string Device::pci_id() const { return pci_text(pci_number()); }

std::uint64_t Device::identity() const { return hash_of(properties_); }

std::string Device::text() const {
  std::size_t left = 0, total = 0;
  check(cudaMemGetInfo(&left, &total), "asking for the memory left");
  return concat(properties_.name, " (GPU ", ordinal_, ", ", pci_id(), "), compute capability ",
                properties_.major, '.', properties_.minor, ", ", library_versions(),
                fmt::format(", {:.0f} of {:.0f} MiB in use", static_cast<double>(total - left) / kMiB,
                            static_cast<double>(total) / kMiB));
}

cudaStream_t Device::stream(engine::LaneId lane) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
  while (static_cast<int>(streams_.size()) <= lane) {
    const int priority = priority_of(static_cast<engine::LaneId>(streams_.size()), least, greatest);
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority), "making a stream");
    streams_.emplace_back(made);
  }
  return streams_[static_cast<std::size_t>(lane)].get();
}

Buffer Device::allocate(std::size_t bytes) const {
  const std::size_t wanted = std::max<std::size_t>(bytes, 1);
  void* memory = nullptr;
  if (cudaMalloc(&memory, wanted) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    std::size_t left = 0, total = 0;
    check(cudaMemGetInfo(&left, &total), "asking for the memory left");
    throw Error(
        ErrorKind::device,
        fmt::format(
            "out of GPU memory: {:.1f} MiB asked for, {:.1f} of {:.1f} MiB left; use a smaller --batch-size",
            static_cast<double>(wanted) / kMiB, static_cast<double>(left) / kMiB,
            static_cast<double>(total) / kMiB));
  }
  Buffer buffer(static_cast<std::byte*>(memory), bytes, [memory] {
    if (!unwinding()) static_cast<void>(cudaFree(memory));
  });
  check(cudaMemsetAsync(memory, 0, wanted, copies_.get()), "clearing memory");
  check(cudaStreamSynchronize(copies_.get()), "clearing memory");
  return buffer;
}

void Device::copy(void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, copies_.get()), "copying");
  check(cudaStreamSynchronize(copies_.get()), "copying");
}

cublasLtHandle_t Device::blas() {
  if (!blas_) {
    cublasLtHandle_t made = nullptr;
    check(cublasLtCreate(&made), "opening cuBLASLt");
    blas_ = Owned<cublasLtHandle_t>(made);
  }
  return blas_.get();
}

TrialMemory::TrialMemory(Device& device, std::size_t bytes)
    : device_(device),
      operand_(device.allocate(bytes)),
      result_(device.allocate(bytes)),
      nans_(device.allocate(kNanBytes)) {
  const std::vector<std::byte> ones(kNanBytes, std::byte{0xFF});
  device.copy(nans_.data(), ones.data(), ones.size());
  trial_.nans = nans_.data();
  trial_.nan_bytes = nans_.size();
  trial_.read = [&device](void* dst, const void* src, std::size_t count) { device.copy(dst, src, count); };
  trial_.blas = device.blas();
  trial_.dnn = &device.dnn();
  trial_.stream = device.stream(engine::kCompute);
  trial_.operand = operand_.data();
  trial_.result = result_.data();
  trial_.workspace = [this](std::size_t most) { return workspace(most); };
}

void* TrialMemory::workspace(std::size_t bytes) {
  if (workspace_.data() != nullptr && workspace_.size() >= bytes) return workspace_.data();
  workspace_ = {};  // before the new one is allocated, because both may not fit
  try {
    workspace_ = device_.allocate(bytes);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::device) throw;
  }
  return workspace_.data();
}

namespace {

/// Warns of each host with GPUs that all its ranks leave idle. `visible`: how many GPUs each rank sees.
void warn_of_idle_gpus(const comm::World& world, const std::vector<std::uint64_t>& gpus,
                       const std::vector<int>& visible) {
  std::map<std::string, std::pair<std::set<std::uint64_t>, int>> hosts;  // the GPUs in use, and the most seen
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    auto& [used, most] = hosts[world.hosts()[rank]];
    used.insert(gpus[rank]);
    most = std::max(most, visible[rank]);
  }
  for (const auto& [host, found] : hosts) {
    const auto& [used, most] = found;
    const int idle = most - static_cast<int>(used.size());
    if (idle <= 0) continue;
    Log(world.rank())
        .warn(concat("the run leaves ", idle, " of ", most, " GPUs of ", host,
                     " idle; start one rank per GPU (-np ", most, " on one host) to use all"));
  }
}

}  // namespace

void compare_devices(const Device& device, const comm::World& world, bool share) {
  const std::vector<std::uint64_t> gpus = world.gather(device.identity());
  const std::vector<int> ordinals = world.gather(device.ordinal());
  const std::vector<std::uint64_t> places = world.gather(device.pci_number());
  const auto& hosts = world.hosts();
  std::vector<DeviceIdentity> ranks;
  std::map<std::string, std::string> lines;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto first = std::ranges::find(hosts, hosts[rank]) - hosts.begin();
    ranks.push_back({first, gpus[rank]});
    std::string& line = lines[hosts[rank]];
    line +=
        concat(line.empty() ? "" : ", ", "rank ", rank, " GPU ", ordinals[rank], " ", pci_text(places[rank]));
  }
  for (const auto& [host, line] : lines) Log(world.rank()).info(concat("GPUs of ", host, ": ", line));
  int visible = 0;
  check(cudaGetDeviceCount(&visible), "counting the GPUs");
  warn_of_idle_gpus(world, gpus, world.gather(visible));
  const SharedDevice shared = find_shared_device(ranks);
  world.together([&] {
    if (shared.rank < 0 || share || world.rank() != 0) return;
    throw Error(
        ErrorKind::device, "ranks ", shared.other, " and ", shared.rank, " on ",
        hosts[static_cast<std::size_t>(shared.rank)],
        " have the same GPU; give each rank one of its own, or allow sharing for a test with --share-gpus");
  });
}

cudnnHandle_t DnnHandles::of(cudaStream_t stream) {
  if (const auto known = handles_.find(stream); known != handles_.end()) return known->second.get();
  if (!why_.empty()) return nullptr;
  cudnnHandle_t made = nullptr;
  cudnnStatus_t status = cudnnCreate(&made);
  if (status == CUDNN_STATUS_SUCCESS) {
    const auto place = handles_.emplace(stream, Owned<cudnnHandle_t>(made)).first;
    status = cudnnSetStream(made, stream);
    if (status == CUDNN_STATUS_SUCCESS) return place->second.get();
    handles_.erase(place);
  }
  static_cast<void>(cudaGetLastError());
  why_ = concat("cuDNN cannot be opened (", cudnnGetErrorString(status), ")");
  return nullptr;
}

void DnnHandles::abandon() {
  for (auto& [stream, handle] : handles_) static_cast<void>(handle.release());
}

}  // namespace cifar_mpi::cuda
