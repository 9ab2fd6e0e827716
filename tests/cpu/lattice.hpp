#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/engine/arena.hpp"
#include "cpu/bf16.hpp"
#include "cpu/dnnl.hpp"
#include "reference/reference.hpp"
#include "support/draws.hpp"
#include "support/expect_equal.hpp"

/// Operands whose sums are exact, so that kernels and the reference can be compared with ==.
namespace cifar_mpi::cpu::lattice {

inline std::size_t bytes_per_value(engine::Precision precision) {
  return precision == engine::Precision::bf16 ? sizeof(bf16) : sizeof(float);
}

/// Exact values rounded to the given precision.
inline reference::Array rounded(reference::Array values, engine::Precision precision) {
  for (double& value : values) {
    const auto single = static_cast<float>(value);
    value = precision == engine::Precision::bf16 ? to_float(to_bf16(single)) : single;
  }
  return values;
}

/// A tensor in its own format; everything besides the `plain` values is padding.
struct Tensor {
  Desc desc;
  Desc plain;  ///< the same values, fp32, in the order of the reference
  Buffer buffer;
  Tensor(const Desc& format, const Desc& reference_order)
      : desc(format), plain(reference_order), buffer(allocate_host(format.get_size())) {}

  void set(const Dnnl& dnnl, const reference::Array& values) const {
    const std::vector<float> singles(values.begin(), values.end());
    ASSERT_EQ(singles.size() * sizeof(float), plain.get_size());
    reorder_now(dnnl, plain, singles.data(), desc, buffer.data());
  }
  reference::Array get(const Dnnl& dnnl) const {
    std::vector<float> singles(plain.get_size() / sizeof(float));
    reorder_now(dnnl, desc, buffer.data(), plain, singles.data());
    return {singles.begin(), singles.end()};
  }
};

inline void run_kernel(const Dnnl& dnnl, const Kernel& kernel, std::vector<Operand> operands) {
  const Buffer scratch = allocate_host(kernel.scratch_bytes());
  engine::Lane lane;
  kernel_task("kernel", dnnl, kernel, std::move(operands), scratch.data()).start(lane);
}

/// Both precisions, or fp32 alone where the CPU has no bf16 arithmetic.
inline std::vector<engine::Precision> precisions_here() {
  if (has_bf16()) return {engine::Precision::fp32, engine::Precision::bf16};
  std::cout << "[  LOUD    ] this cpu has no bf16 arithmetic: bf16 is NOT tested here\n";
  return {engine::Precision::fp32};
}

using test::expect_equal;

}  // namespace cifar_mpi::cpu::lattice
