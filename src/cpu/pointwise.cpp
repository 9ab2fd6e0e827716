#include <algorithm>
#include <utility>

#include "cpu/parallel.hpp"
#include "cpu/planning.hpp"
#include "cpu/simd.hpp"
#include "cpu/vector_math.hpp"

namespace cifar_mpi::cpu {
namespace {

using model::PointwiseKind;

/// y = f(x) where `slope` is false, else f'(x).
template <PointwiseKind kKind, bool kSlope, class V>
[[gnu::always_inline]] inline V value_of(const V& x, float factor) {
  if constexpr (kKind == PointwiseKind::scale) {
    return kSlope ? broadcast<V>(factor) : x * broadcast<V>(factor);
  } else if constexpr (kKind == PointwiseKind::silu) {
    return silu_of<kSlope>(x);
  } else {
    constexpr float kDensity = 0.39894228f;  // 1/√(2π)
    const Normal<V> normal = normal_of(x);
    return kSlope ? normal.below + x * normal.bell * broadcast<V>(kDensity) : x * normal.below;
  }
}

/// Values [begin, end) of y = f(x), or with `grad_y` of f'(x) · grad_y. `y` may be `x`.
template <class T, PointwiseKind kKind>
struct Loop {
  template <int kLanes>
  struct Version {
    using V = Vec<kLanes>;

    [[gnu::always_inline]] static void step(const T* x, const T* grad_y, T* y, float factor) {
      const V from = load<V>(x);
      store(y, grad_y == nullptr ? value_of<kKind, false>(from, factor)
                                 : value_of<kKind, true>(from, factor) * load<V>(grad_y));
    }
    [[gnu::always_inline]] static void run(const T* x, const T* grad_y, T* y, std::size_t begin,
                                           std::size_t end, float factor) {
      for (; begin + kLanes <= end; begin += kLanes)
        step(x + begin, grad_y == nullptr ? nullptr : grad_y + begin, y + begin, factor);
      if (begin == end) return;
      T values[kLanes] = {}, grads[kLanes] = {};
      std::copy(x + begin, x + end, values);
      if (grad_y != nullptr) std::copy(grad_y + begin, grad_y + end, grads);
      step(values, grad_y == nullptr ? nullptr : grads, values, factor);
      std::copy(values, values + (end - begin), y + begin);
    }
  };
};

/// dst = f(src), or with `grad` f'(src) · grad; dst may be src.
template <class T, PointwiseKind kKind>
engine::Task plan_loop(std::string name, std::size_t count, const std::byte* src, const std::byte* grad,
                       std::byte* dst, float factor) {
  const auto* const x = reinterpret_cast<const T*>(src);
  const auto* const grad_y = reinterpret_cast<const T*>(grad);
  auto* const y = reinterpret_cast<T*>(dst);
  const auto run =
      [=, loop = version_for<Loop<T, kKind>::template Version>(vector_sets_here().back())](engine::Lane&) {
        parallel_values(count,
                        [=](std::size_t begin, std::size_t end) { loop(x, grad_y, y, begin, end, factor); });
      };
  engine::Task task{std::move(name), {engine::bytes_of(x, count)}, {engine::bytes_of(y, count)}, run, {}};
  if (grad != nullptr) task.reads.push_back(engine::bytes_of(grad_y, count));
  return task;
}

engine::Task plan(const std::string& name, const model::Pointwise& layer, std::size_t count,
                  engine::Precision precision, const std::byte* src, const std::byte* grad, std::byte* dst) {
  const auto by_kind = [&]<class T>(T) {
    switch (layer.kind) {
      case PointwiseKind::gelu:
        return plan_loop<T, PointwiseKind::gelu>(name, count, src, grad, dst, layer.factor);
      case PointwiseKind::scale:
        return plan_loop<T, PointwiseKind::scale>(name, count, src, grad, dst, layer.factor);
      case PointwiseKind::silu:
        break;
    }
    return plan_loop<T, PointwiseKind::silu>(name, count, src, grad, dst, layer.factor);
  };
  return precision == engine::Precision::bf16 ? by_kind(bf16{}) : by_kind(float{});
}

}  // namespace

/// In the format of its input if the gradient has it too, else in NHWC.
PlannedGroupPtr plan_pointwise_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::Pointwise>(0);
  if (layer == nullptr) return nullptr;
  const engine::ValueFormat& in = chain.inputs[0];
  const engine::ValueFormat format = in.value == in.grad ? in : planning.formats(planning.nhwc(chain.in()));
  engine::Contract contract = plain_contract(chain.operation(0).name, format, format);
  contract.grad_on_src = true;
  const std::size_t count = planning.values_in(format.value);
  const engine::Precision precision = planning.precision;
  return simple_group(
      planning, contract,
      [=, layer = *layer](const std::string& name, const engine::Operands& o) {
        return plan(name, layer, count, precision, o.src[0], nullptr, o.dst);
      },
      [=, layer = *layer](const std::string& name, const engine::Operands& o) {
        return plan(name, layer, count, precision, o.src[0], o.grad_dst, o.grad_src[0]);
      });
}

}  // namespace cifar_mpi::cpu
