#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cifar_mpi/cuda/backend.hpp"
#include "cuda/device.hpp"
#include "cuda/host_math.hpp"
#include "cuda/value_type.hpp"
#include "reference/reference.hpp"
#include "support/expect_equal.hpp"

namespace cifar_mpi::cuda::testing {

inline constexpr ValueType kTypes[] = {ValueType::fp32, ValueType::bf16};

/// Skips the test, with a message, if there is no GPU.
inline void skip_without_gpu() {
  const std::string reason = unusable();
  if (!reason.empty()) GTEST_SKIP() << "LOUD: nothing of this test ran: " << reason;
}
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override { skip_without_gpu(); }
};

/// bf16 as bits: to nearest, ties to even; not for NaN.
inline std::uint16_t to_bf16(double value) {
  const auto single = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline double from_bf16(std::uint16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float single = 0.0f;
  std::memcpy(&single, &bits, sizeof bits);
  return static_cast<double>(single);
}

/// Exact values after rounding to a type.
inline double rounded(double value, ValueType type) {
  return type == ValueType::bf16 ? from_bf16(to_bf16(value)) : static_cast<double>(static_cast<float>(value));
}
inline reference::Array rounded(reference::Array values, ValueType type) {
  for (double& value : values) value = rounded(value, type);
  return values;
}

using test::lattice;
using test::noise_array;

/// A GPU, with copies of arrays to it and back. Memory for results starts as NaN.
class Bench {
 public:
  Device device{engine::BackendOptions{}};
  cudaStream_t stream = device.stream(engine::kCompute);

  template <class T>
  T* upload(const std::vector<T>& values) {
    T* const memory = take<T>(values.size());
    device.copy(memory, values.data(), values.size() * sizeof(T));
    return memory;
  }
  void* upload(const reference::Array& values, ValueType type) {
    if (type == ValueType::fp32) return upload(std::vector<float>(values.begin(), values.end()));
    std::vector<std::uint16_t> narrow;
    for (const double value : values) narrow.push_back(to_bf16(value));
    return upload(narrow);
  }
  /// Each byte is 0xFF, NaN as fp32 and as bf16.
  template <class T>
  T* take(std::size_t count) {
    buffers_.push_back(device.allocate(count * sizeof(T)));
    const std::vector<std::byte> poison(count * sizeof(T), std::byte{0xFF});
    device.copy(buffers_.back().data(), poison.data(), poison.size());
    return buffers_.back().as<T>();
  }
  void* take(std::size_t count, ValueType type) { return take<std::byte>(count * bytes_per(type)); }
  unsigned* counters(std::size_t count) {
    buffers_.push_back(device.allocate(count * sizeof(unsigned)));
    return buffers_.back().as<unsigned>();
  }

  template <class T>
  std::vector<T> download(const T* memory, std::size_t count) {
    sync();
    std::vector<T> values(count);
    device.copy(values.data(), memory, count * sizeof(T));
    return values;
  }
  reference::Array download(const void* memory, std::size_t count, ValueType type) {
    reference::Array values;
    if (type == ValueType::fp32) {
      for (const float value : download(static_cast<const float*>(memory), count)) values.push_back(value);
    } else {
      for (const std::uint16_t value : download(static_cast<const std::uint16_t*>(memory), count))
        values.push_back(from_bf16(value));
    }
    return values;
  }
  /// Frees all arrays.
  void clear() {
    sync();
    buffers_.clear();
  }
  void sync() const { check(cudaStreamSynchronize(stream), "a test"); }

 private:
  std::vector<Buffer> buffers_;
};

using test::expect_equal;

constexpr double unit_of(ValueType type) { return type == ValueType::bf16 ? 0x1.0p-9 : 0x1.0p-24; }

}  // namespace cifar_mpi::cuda::testing
