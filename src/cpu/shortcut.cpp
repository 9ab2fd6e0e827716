#include <algorithm>
#include <cstring>

#include "cpu/parallel.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {
namespace {

/// The same blocks of channels on both sides, or NHWC; selected pixels keep their bytes.
struct Subsample {
  int batch = 0;
  Extent in, out;
  int stride = 1;
  int unit = 0;  ///< contiguous channels on both sides
  bool nhwc = false;
  std::size_t value_bytes = 0;

  std::size_t bytes_of(const Extent& extent) const {
    return static_cast<std::size_t>(batch) * static_cast<std::size_t>(extent.count()) * value_bytes;
  }
  /// Byte offset of a pixel's channels from `channel` on, a multiple of `unit`.
  std::size_t place(const Extent& extent, std::ptrdiff_t n, int channel, int y, int x) const {
    const std::ptrdiff_t pixels = std::ptrdiff_t{extent.height} * extent.width;
    const std::ptrdiff_t pixel = std::ptrdiff_t{y} * extent.width + x;
    const std::ptrdiff_t values = n * pixels * extent.channels + (nhwc ? pixel * extent.channels + channel
                                                                       : channel * pixels + pixel * unit);
    return static_cast<std::size_t>(values) * value_bytes;
  }
  std::size_t run_bytes(int channel) const {
    return static_cast<std::size_t>(std::min(unit, out.channels - channel)) * value_bytes;
  }
  /// Calls body(channel, y, x) for each run of channels of each pixel of the output.
  void for_each_run(const auto& body) const {
    for (int channel = 0; channel < out.channels; channel += unit) {
      for (int y = 0; y < out.height; ++y) {
        for (int x = 0; x < out.width; ++x) body(channel, y, x);
      }
    }
  }
};

engine::Task plan_forward(std::string name, const Subsample& s, const std::byte* src, std::byte* dst) {
  const auto run = [=](engine::Lane&) {
    parallel_for(s.batch, [&](std::ptrdiff_t n) {
      s.for_each_run([&](int channel, int y, int x) {
        std::byte* const to = dst + s.place(s.out, n, channel, y, x);
        if (channel < s.in.channels) {
          std::memcpy(to, src + s.place(s.in, n, channel, y * s.stride, x * s.stride), s.run_bytes(channel));
        } else {
          std::memset(to, 0, s.run_bytes(channel));
        }
      });
    });
  };
  return {std::move(name), {{src, s.bytes_of(s.in)}}, {{dst, s.bytes_of(s.out)}}, run, {}};
}

/// The gradient of the selected pixels; zero elsewhere.
engine::Task plan_backward(std::string name, const Subsample& s, const std::byte* grad_dst,
                           std::byte* grad_src) {
  const auto run = [=](engine::Lane&) {
    const std::size_t image_bytes = s.bytes_of(s.in) / static_cast<std::size_t>(s.batch);
    parallel_for(s.batch, [&](std::ptrdiff_t n) {
      std::memset(grad_src + s.place(s.in, n, 0, 0, 0), 0, image_bytes);
      s.for_each_run([&](int channel, int y, int x) {
        if (channel >= s.in.channels) return;
        std::memcpy(grad_src + s.place(s.in, n, channel, y * s.stride, x * s.stride),
                    grad_dst + s.place(s.out, n, channel, y, x), s.run_bytes(channel));
      });
    });
  };
  return {std::move(name), {{grad_dst, s.bytes_of(s.out)}}, {{grad_src, s.bytes_of(s.in)}}, run, {}};
}

}  // namespace

PlannedGroupPtr plan_shortcut_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::Shortcut>(0);
  if (layer == nullptr) return nullptr;
  const Extent in = chain.in(), out = chain.out(0);
  const ChannelBlocks src = planning.known_blocks(chain.inputs[0].value, in);
  const ChannelBlocks dst = planning.blocks_like(src, out);
  const bool in_blocks = !dst.nhwc;
  const engine::ValueFormat from = planning.formats(in_blocks ? src.desc : planning.nhwc(in));
  const engine::ValueFormat to = planning.formats(dst.desc);
  const Subsample subsample{planning.batch,
                            in,
                            out,
                            layer->stride,
                            in_blocks ? dst.block : in.channels,
                            !in_blocks,
                            to.value.bytes / planning.values_in(to.value)};
  return simple_group(
      planning, plain_contract(layer->name, from, to),
      [=](const std::string& name, const engine::Operands& o) {
        return plan_forward(name, subsample, o.src[0], o.dst);
      },
      [=](const std::string& name, const engine::Operands& o) {
        return plan_backward(name, subsample, o.grad_dst, o.grad_src[0]);
      });
}

}  // namespace cifar_mpi::cpu
