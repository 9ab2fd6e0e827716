#include <cstring>

#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {
namespace {

/// NHWC on both sides; the pixels that are taken keep their bytes.
struct Subsample {
  int batch = 0;
  Extent in, out;
  int stride = 1;
  std::size_t value_bytes = 0;

  std::size_t in_row() const { return static_cast<std::size_t>(in.channels) * value_bytes; }
  std::size_t out_row() const { return static_cast<std::size_t>(out.channels) * value_bytes; }
  std::size_t in_bytes() const { return pixel(in, batch, 0, 0) * in_row(); }
  std::size_t out_bytes() const { return pixel(out, batch, 0, 0) * out_row(); }
  static std::size_t pixel(const Extent& extent, int n, int y, int x) {
    return (static_cast<std::size_t>(n) * static_cast<std::size_t>(extent.height) +
            static_cast<std::size_t>(y)) *
               static_cast<std::size_t>(extent.width) +
           static_cast<std::size_t>(x);
  }
};

engine::Task plan_forward(std::string name, const Subsample& s, const std::byte* src, std::byte* dst) {
  const auto run = [=](engine::Lane&) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < s.batch; ++n) {
      for (int y = 0; y < s.out.height; ++y) {
        for (int x = 0; x < s.out.width; ++x) {
          std::byte* const to = dst + Subsample::pixel(s.out, n, y, x) * s.out_row();
          std::memcpy(to, src + Subsample::pixel(s.in, n, y * s.stride, x * s.stride) * s.in_row(),
                      s.in_row());
          std::memset(to + s.in_row(), 0, s.out_row() - s.in_row());
        }
      }
    }
  };
  return {std::move(name), {{src, s.in_bytes()}}, {{dst, s.out_bytes()}}, run, {}};
}

/// The gradient of the pixels that were taken; zero elsewhere.
engine::Task plan_backward(std::string name, const Subsample& s, const std::byte* grad_dst,
                           std::byte* grad_src) {
  const auto run = [=](engine::Lane&) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < s.batch; ++n) {
      std::memset(grad_src + Subsample::pixel(s.in, n, 0, 0) * s.in_row(), 0,
                  Subsample::pixel(s.in, 1, 0, 0) * s.in_row());
      for (int y = 0; y < s.out.height; ++y) {
        for (int x = 0; x < s.out.width; ++x) {
          std::memcpy(grad_src + Subsample::pixel(s.in, n, y * s.stride, x * s.stride) * s.in_row(),
                      grad_dst + Subsample::pixel(s.out, n, y, x) * s.out_row(), s.in_row());
        }
      }
    }
  };
  return {std::move(name), {{grad_dst, s.out_bytes()}}, {{grad_src, s.in_bytes()}}, run, {}};
}

class ShortcutGroup final : public PlannedGroup {
 public:
  ShortcutGroup(Planning& planning, const model::Shortcut& layer, const Extent& in, const Extent& out)
      : PlannedGroup(planning) {
    contract_.name = layer.name;
    contract_.src = {planning.formats(planning.nhwc(in))};
    contract_.dst = planning.formats(planning.nhwc(out));
    subsample_ = {planning.batch, in, out, layer.stride,
                  contract_.dst.value.bytes / planning.values_in(contract_.dst.value)};
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena&) const override {
    engine::GroupTasks tasks;
    tasks.forward.push_back(plan_forward(name() + " forward", subsample_, operands.src[0], operands.dst));
    if (operands.grad_src[0] == nullptr) return tasks;
    tasks.backward.push_back(
        plan_backward(name() + " backward", subsample_, operands.grad_dst, operands.grad_src[0]));
    return tasks;
  }

 private:
  Subsample subsample_;
};

}  // namespace

PlannedGroupPtr plan_shortcut_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::Shortcut>(0);
  if (layer == nullptr) return nullptr;
  return std::make_unique<ShortcutGroup>(planning, *layer, chain.in(), chain.out(0));
}

}  // namespace cifar_mpi::cpu
