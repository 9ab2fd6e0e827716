#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cpu/dnnl.hpp"

/// Observations for people: histograms of tensors, and the images that the network sees.
namespace cifar_mpi::cpu {

struct Counted {
  const std::byte* values = nullptr;
  dnnl::memory::data_type type = dnnl::memory::data_type::f32;  ///< or bf16
  std::vector<engine::ValueRun> runs;
  engine::ValueCounts* counts = nullptr;
};

/// Counts the values of each tensor as engine::ValueCounts says, in two passes: first the ends, then the
/// number of values at or above each edge, which needs no table and no search (one Xeon core with AVX-512:
/// 1.6 ns a value, 1.3 of it the 30 comparisons).
///
///   bits   integers, a minimum and a maximum: they do not depend on the number of threads
engine::Task plan_count(std::string name, std::vector<Counted> tensors);

/// The places of values in activations of this format; the rest is padding of channels.
std::vector<engine::ValueRun> values_of(const Dnnl& dnnl, const Desc& desc, int batch, const Extent& extent);

/// dst [images, h, w, c]: the first images of x [batch, c, h, w], fp32 or bf16.
engine::Task plan_keep_images(const std::byte* x, engine::Precision precision, const Extent& extent,
                              int images, float* dst);

}  // namespace cifar_mpi::cpu
