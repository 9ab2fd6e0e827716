#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/stand_in/block.hpp"
#include "cuda/stand_in/gpu.hpp"
#include "cuda/stand_in/queues.hpp"

/// The part of CUDA's runtime that the backend calls.
namespace cifar_mpi::stand_in {
namespace {

int current_device = 0;

Queues& queues() { return Queues::get(); }

cudaError_t result(cudaError_t error) { return queues().fail(error); }

/// The numbers of the host's GPUs that this process sees: as in CUDA, those listed before the first that does not
/// exist.
std::vector<int> visible_gpus() {
  const char* const count = std::getenv("STAND_IN_GPUS");
  const int all = count != nullptr ? std::atoi(count) : 1;
  std::vector<int> gpus(static_cast<std::size_t>(all));
  std::iota(gpus.begin(), gpus.end(), 0);
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return gpus;
  gpus.clear();
  std::istringstream list(visible);
  for (int gpu = 0; list >> gpu && gpu >= 0 && gpu < all; list.ignore(1, ',')) gpus.push_back(gpu);
  return gpus;
}

int devices() { return static_cast<int>(visible_gpus().size()); }

int gpu_of(int device) { return visible_gpus().at(static_cast<std::size_t>(device)); }

std::string uuid_of(int device) { return "stand-in GPU " + std::to_string(gpu_of(device)); }

bool is_pageable(const void* address) {
  const DeviceMemory& memory = queues().memory;
  return !memory.holds(address) && !memory.is_pinned(address);
}

}  // namespace

void start(cudaStream_t stream, const char* name, std::function<void()> work) {
  if (has_fault("hang")) return start_collective(stream, name, std::move(work));
  static_cast<void>(result(queues().start(stream, {std::move(work)})));
}

void start_collective(cudaStream_t stream, const char*, std::function<void()> work) {
  if (has_fault("hang")) {
    work = [] {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    };
  }
  static_cast<void>(result(queues().start(stream, {std::move(work), true})));
}

void start(cudaStream_t stream, const char* name, void* workspace, std::size_t bytes,
           std::function<void()> work) {
  const auto mark = std::make_shared<unsigned char>();
  start(stream, name, [=] {
    *mark = static_cast<unsigned char>(chance(256));
    std::memset(workspace, *mark, bytes);
  });
  start(stream, name, [=, work = std::move(work)] {
    auto* const scratch = static_cast<unsigned char*>(workspace);
    if (!std::all_of(scratch, scratch + bytes, [&](unsigned char byte) { return byte == *mark; })) {
      throw std::runtime_error(std::string(name) + ": something else wrote to its workspace meanwhile");
    }
    work();
  });
}

bool has_fault(const char* name) {
  const char* const fault = std::getenv("STAND_IN_FAULT");
  return fault != nullptr && std::strcmp(fault, name) == 0;
}

std::uint64_t nanoseconds() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

std::string device_uuid() { return uuid_of(current_device); }

}  // namespace cifar_mpi::stand_in

using namespace cifar_mpi::stand_in;

cudaError_t cudaDriverGetVersion(int* version) {
  *version = has_fault("driver") ? 11040 : CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  if (has_fault("driver")) return result(cudaErrorInsufficientDriver);
  *count = devices();
  return *count > 0 ? cudaSuccess : result(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return result(cudaErrorInvalidDevice);
  if (has_fault("busy")) return result(cudaErrorDevicesUnavailable);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  if (device < 0 || device >= devices()) return result(cudaErrorInvalidDevice);
  std::snprintf(properties->name, sizeof properties->name, "stand-in GPU");
  properties->major = 9;
  properties->pciBusID = 16 + gpu_of(device);
  properties->totalGlobalMem = queues().memory.total();
  std::snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "%s", uuid_of(device).c_str());
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  static const std::vector<std::pair<cudaError_t, const char*>> kWords = {
      {cudaSuccess, "no error"},
      {cudaErrorNoDevice, "no CUDA-capable device is detected"},
      {cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"},
      {cudaErrorMemoryAllocation, "out of memory"},
      {cudaErrorNotReady, "device not ready"},
      {cudaErrorLaunchFailure, "unspecified launch failure"},
      {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
      {cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"},
      {cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"},
      {cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"},
  };
  for (const auto& [code, words] : kWords) {
    if (code == error) return words;
  }
  return "an error of the stand-in GPU";
}
cudaError_t cudaGetLastError() { return queues().last_error(); }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (const cudaError_t status = queues().refuse_in_capture(); status != cudaSuccess) return result(status);
  *memory = queues().memory.take(bytes);
  return *memory != nullptr ? cudaSuccess : result(cudaErrorMemoryAllocation);
}
/// Waits for all started work, as CUDA's does.
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (const cudaError_t status = queues().finish_all(); status != cudaSuccess) return result(status);
  if (queues().memory.give(memory)) return cudaSuccess;
  std::fprintf(stderr, "stand-in GPU: something wrote before or after an array, or freed it twice\n");
  std::abort();
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  if (const cudaError_t status = queues().refuse_in_capture(); status != cudaSuccess) return result(status);
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return result(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xFF, bytes);
  queues().memory.note_pinned(*memory, bytes);
  return cudaSuccess;
}
/// CUDA does not promise that this waits.
cudaError_t cudaFreeHost(void* memory) {
  if (!queues().idle()) {
    std::fprintf(stderr, "stand-in GPU: pinned memory was given back while work was under way\n");
    std::abort();
  }
  queues().memory.drop_pinned(memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* total) {
  *total = queues().memory.total();
  *left = *total - queues().memory.used();
  return cudaSuccess;
}
/// Host memory that is not pinned is read before this returns, although the data may arrive later; it is written before
/// this returns.
cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const bool reads_now = is_pageable(src), writes_now = is_pageable(dst);
  std::function<void()> work = [=] { std::memmove(dst, src, bytes); };
  if (reads_now) {
    const auto* const begin = static_cast<const std::byte*>(src);
    work = [dst, copy = std::vector<std::byte>(begin, begin + bytes)] {
      std::memcpy(dst, copy.data(), copy.size());
    };
  }
  const cudaError_t status = queues().start(stream, {std::move(work)});
  if (status != cudaSuccess || !writes_now) return result(status);
  return result(queues().finish(stream));
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return result(queues().start(stream, {[=] { std::memset(memory, value, bytes); }}));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = queues().make_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  *stream = queues().make_stream();
  (*stream)->priority = priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return result(queues().end_stream(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return result(queues().finish(stream)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return result(queues().wait(stream, event));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return result(queues().record(event, stream));
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return result(queues().query(event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return result(queues().finish(event)); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return result(queues().elapsed(milliseconds, begin, end));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (has_fault("capture")) return result(cudaErrorStreamCaptureUnsupported);
  return result(queues().begin_capture(stream, mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const cudaError_t status = queues().end_capture(stream, graph);
  if (status != cudaSuccess || !has_fault("end_capture")) return result(status);
  delete std::exchange(*graph, nullptr);
  return result(cudaErrorStreamCaptureInvalidated);
}
/// Refuses a graph that a GPU would run at one priority although its streams have several.
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  const Nodes& nodes = *graph->nodes;
  const bool several = std::any_of(nodes.begin(), nodes.end(),
                                   [&](const Node& node) { return node.priority != nodes.front().priority; });
  if (several && (flags & cudaGraphInstantiateFlagUseNodePriority) == 0) {
    std::fprintf(stderr,
                 "stand-in GPU: a graph without cudaGraphInstantiateFlagUseNodePriority loses priorities\n");
    return result(cudaErrorInvalidValue);
  }
  if (has_fault("instantiate")) return result(cudaErrorMemoryAllocation);
  *made = new CUgraphExec_st{graph->nodes, 0};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (has_fault("launch")) return result(cudaErrorInvalidValue);
  return result(queues().launch(graph, stream));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
