#include <algorithm>

#include "cpu/bf16.hpp"
#include "cpu/parallel.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {
namespace {

/// Channels that are summed at once.
constexpr int kStrip = 64;

/// An activation with `pixels` per image, in blocks of channels as LrnShape counts them, and the layout of
/// the images' means.
struct Means {
  int batch = 0;
  int pixels = 0;
  int channels = 0;
  int block = 0;

  std::size_t outputs() const { return static_cast<std::size_t>(batch) * static_cast<std::size_t>(channels); }
  std::size_t inputs() const { return outputs() * static_cast<std::size_t>(pixels); }

  /// Calls body(at, place, count) for runs of contiguous channels: `at` is their index in the means, `place`
  /// that in the first pixel; the next pixel is `block` further.
  void for_each_run(std::ptrdiff_t image, const auto& body) const {
    for (int first = 0, count = 0; first < channels; first += count) {
      count = std::min(kStrip, block - first % block);
      const std::ptrdiff_t at = image * channels;
      body(at + first, at * pixels + std::ptrdiff_t{first / block} * pixels * block + first % block, count);
    }
  }
};

template <class T>
engine::Task plan_forward(std::string name, const Means& means, const std::byte* src, std::byte* dst) {
  const auto* const x = reinterpret_cast<const T*>(src);
  auto* const y = reinterpret_cast<T*>(dst);
  const auto run = [=](engine::Lane&) {
    const float share = 1.0f / static_cast<float>(means.pixels);
    parallel_for(means.batch, [&](std::ptrdiff_t n) {
      means.for_each_run(n, [&](std::ptrdiff_t at, std::ptrdiff_t place, int count) {
        float sums[kStrip] = {};
        for (int p = 0; p < means.pixels; ++p) {
          const T* const row = x + place + std::ptrdiff_t{p} * means.block;
#pragma omp simd
          for (int c = 0; c < count; ++c) sums[c] += to_float(row[c]);
        }
        for (int c = 0; c < count; ++c) y[at + c] = from_float<T>(sums[c] * share);
      });
    });
  };
  return {std::move(name),
          {engine::bytes_of(x, means.inputs())},
          {engine::bytes_of(y, means.outputs())},
          run,
          {}};
}

template <class T>
engine::Task plan_backward(std::string name, const Means& means, const std::byte* grad_dst,
                           std::byte* grad_src) {
  const auto* const grad_y = reinterpret_cast<const T*>(grad_dst);
  auto* const grad_x = reinterpret_cast<T*>(grad_src);
  const auto run = [=](engine::Lane&) {
    const float share = 1.0f / static_cast<float>(means.pixels);
    parallel_for(means.batch, [&](std::ptrdiff_t n) {
      means.for_each_run(n, [&](std::ptrdiff_t at, std::ptrdiff_t place, int count) {
        const T* const from = grad_y + at;
        for (int p = 0; p < means.pixels; ++p) {
          T* const to = grad_x + place + std::ptrdiff_t{p} * means.block;
#pragma omp simd
          for (int c = 0; c < count; ++c) to[c] = from_float<T>(to_float(from[c]) * share);
        }
      });
    });
  };
  return {std::move(name),
          {engine::bytes_of(grad_y, means.outputs())},
          {engine::bytes_of(grad_x, means.inputs())},
          run,
          {}};
}

}  // namespace

PlannedGroupPtr plan_global_avg_pool_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::GlobalAvgPool>(0);
  if (layer == nullptr) return nullptr;
  const Extent in = chain.in();
  const ChannelBlocks src = planning.known_blocks(chain.inputs[0].value, in);
  const Means means{planning.batch, in.height * in.width, in.channels, src.block};
  const engine::ValueFormat from = planning.formats(src.desc);
  const engine::ValueFormat to = planning.formats(planning.nhwc({1, 1, in.channels}));
  const bool bf16s = planning.precision == engine::Precision::bf16;
  return simple_group(
      planning, plain_contract(layer->name, from, to),
      [=, plan = bf16s ? plan_forward<bf16> : plan_forward<float>](
          const std::string& name, const engine::Operands& o) { return plan(name, means, o.src[0], o.dst); },
      [=, plan = bf16s ? plan_backward<bf16> : plan_backward<float>](const std::string& name,
                                                                     const engine::Operands& o) {
        return plan(name, means, o.grad_dst, o.grad_src[0]);
      });
}

}  // namespace cifar_mpi::cpu
