#include <cstdint>
#include <functional>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "cuda/conv.hpp"
#include "cuda/device.hpp"
#include "cuda/matmul.hpp"
#include "cuda/planner.hpp"
#include "cuda/sum.hpp"

namespace cifar_mpi::cuda {
namespace {

constexpr std::int64_t kExtent = 4096;

/// Mean seconds of one `run` on the stream, over as many runs as fit into `seconds`.
double time_runs(cudaStream_t stream, double seconds, const std::function<void()>& run) {
  const Event begin = make_event(true), end = make_event(true);
  const auto measure = [&](int runs) {
    check(cudaEventRecord(begin.get(), stream), "starting the clock");
    for (int i = 0; i < runs; ++i) run();
    check(cudaEventRecord(end.get(), stream), "stopping the clock");
    check(cudaEventSynchronize(end.get()), "measuring");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "reading the clock");
    return 1e-3 * static_cast<double>(milliseconds) / runs;
  };
  measure(2);
  const double once = measure(2);
  const double runs = seconds / once;
  return measure(runs < 1.0 ? 1 : runs > 1000.0 ? 1000 : static_cast<int>(runs));
}

/// Zeros would run faster than the values of a step.
Buffer random_values(Device& device, ValueType type, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = uniform01(static_cast<std::uint32_t>(i * 2654435761u)) - 0.5f;
  }
  Buffer wide = device.allocate(count * sizeof(float));
  device.copy(wide.data(), values.data(), wide.size());
  if (type == ValueType::fp32) return wide;
  Buffer narrow = device.allocate(count * bytes_per(ValueType::bf16));
  round_to_bf16(device.stream(engine::kCompute), wide.as<float>(), narrow.data(),
                static_cast<std::int64_t>(count));
  check(cudaStreamSynchronize(device.stream(engine::kCompute)), "writing random values");
  return narrow;
}

/// The GPU that the backend of this process uses.
engine::BackendOptions current_device() {
  int ordinal = 0;
  if (const std::string reason = unusable(); !reason.empty()) {
    throw Error(ErrorKind::device, "--device cuda: ", reason, "; use --device cpu");
  }
  check(cudaGetDevice(&ordinal), "asking for the GPU in use");
  engine::BackendOptions options;
  options.local_rank = ordinal;
  options.local_ranks = ordinal + 1;
  options.share_gpus = true;
  return options;
}

/// Seconds of a product of matrices of extent · extent.
double time_product(Device& device, engine::Precision precision, std::int64_t extent, double seconds) {
  const ValueType type = value_type(precision);
  const auto values = static_cast<std::size_t>(extent * extent);
  const Buffer a = random_values(device, type, values);
  const Buffer d = device.allocate(values * bytes_per(type));
  Matmul product({extent, extent, extent, false, false, type, type, precision == engine::Precision::tf32});
  product.plan(TrialMemory(device, d.size()).trial());
  const Buffer workspace = device.allocate(product.workspace_bytes());
  const cudaStream_t stream = device.stream(engine::kCompute);
  return time_runs(stream, seconds,
                   [&] { product.run(stream, a.data(), a.data(), d.data(), nullptr, workspace.data()); });
}

/// The rate at which `run(n)` does `work(n)`, for the first n that takes kLong_s, or for the last.
template <class Work, class Run>
double rate_of(std::int64_t n, std::int64_t last, const Work& work, const Run& run) {
  constexpr double kLong_s = 0.2e-3;
  double took = run(n);
  while (took < kLong_s && n < last) took = run(n *= 2);
  return work(n) / took;
}

}  // namespace

double measure_peak_flops(engine::Precision precision, double seconds) {
  Device device(current_device());
  return 2.0 * kExtent * kExtent * kExtent / time_product(device, precision, kExtent, seconds);
}

engine::RooflineLimits measure_limits(engine::Precision precision) {
  Device device(current_device());
  const cudaStream_t stream = device.stream(engine::kCompute);
  const auto cube = [](std::int64_t n) { return 2.0 * static_cast<double>(n * n * n); };
  const auto moved = [](std::int64_t n) { return 8.0 * static_cast<double>(n); };
  return {
      rate_of(256, kExtent, cube, [&](std::int64_t n) { return time_product(device, precision, n, 0.0); }),
      rate_of(1 << 16, 1 << 25, moved, [&](std::int64_t n) {
        const Buffer values = device.allocate(static_cast<std::size_t>(n) * 2 * sizeof(float));
        float* const to = values.as<float>() + n;
        return time_runs(stream, 0.0, [&] {
          add(stream, to, values.as<float>(), nullptr, static_cast<std::size_t>(n), 1.0f, 1.0f);
        });
      })};
}

double measure_copy_rate(double seconds) {
  Device device(current_device());
  const std::size_t bytes = std::size_t{512} << 20;
  const Buffer from = device.allocate(bytes), to = device.allocate(bytes);
  const cudaStream_t stream = device.stream(engine::kCompute);
  const double once = time_runs(stream, seconds, [&] {
    check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream), "copying");
  });
  return 2.0 * static_cast<double>(bytes) / once;
}

}  // namespace cifar_mpi::cuda
