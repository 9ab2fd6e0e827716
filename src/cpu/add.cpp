#include <utility>

#include "cpu/bf16.hpp"
#include "cpu/copy.hpp"
#include "cpu/parallel.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {
namespace {

template <class T>
engine::Task plan_typed_add(std::string name, std::size_t count, std::byte* dst, const std::byte* a,
                            const std::byte* b) {
  auto* const to = reinterpret_cast<T*>(dst);
  const auto* const left = reinterpret_cast<const T*>(a);
  const auto* const right = reinterpret_cast<const T*>(b);
  const auto add = [=](engine::Lane&) {
    parallel_values(count, [=](std::size_t begin, std::size_t end) {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) to[i] = from_float<T>(to_float(left[i]) + to_float(right[i]));
    });
  };
  return {std::move(name),
          {engine::bytes_of(left, count), engine::bytes_of(right, count)},
          {engine::bytes_of(to, count)},
          add,
          {}};
}

}  // namespace

engine::Task plan_add(std::string name, std::size_t count, engine::Precision precision, std::byte* dst,
                      const std::byte* a, const std::byte* b) {
  return precision == engine::Precision::bf16 ? plan_typed_add<bf16>(std::move(name), count, dst, a, b)
                                              : plan_typed_add<float>(std::move(name), count, dst, a, b);
}

/// In the format of the first value if both have it, else in NHWC.
PlannedGroupPtr plan_add_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::Add>(0);
  if (layer == nullptr) return nullptr;
  const bool equal =
      chain.inputs[0].value == chain.inputs[1].value && chain.inputs[0].value == chain.inputs[0].grad;
  const engine::ValueFormat format = equal ? chain.inputs[0] : planning.formats(planning.nhwc(chain.in()));
  engine::Contract contract = plain_contract(layer->name, format, format);
  contract.src.push_back(format);
  contract.hands_grad_on = true;
  return simple_group(planning, contract,
                      [count = planning.values_in(contract.dst.value), precision = planning.precision](
                          const std::string& name, const engine::Operands& o) {
                        return plan_add(name, count, precision, o.dst, o.src[0], o.src[1]);
                      });
}

}  // namespace cifar_mpi::cpu
