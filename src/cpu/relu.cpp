#include "cpu/relu.hpp"

#include <cstdint>

#include "cpu/parallel.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {
namespace {

// Bounds for bf16 and fp32 bits compared as signed integers: nonnegative values are at least 0, and negative
// ones run from -0 (the least) to -infinity, followed only by NaNs with a sign bit. So one comparison drops
// exactly the negative numbers.
template <class Bits>
constexpr Bits kMinusInfinity = sizeof(Bits) == 4 ? static_cast<Bits>(0xFF800000u)
                                                  : static_cast<Bits>(0xFF80);

/// Passes `src` where `decide` is above kBound.
template <class Bits, Bits kBound>
struct ReluPass {
  std::size_t count;
  const Bits* decide;
  const Bits* src;
  Bits* dst;

  void operator()(engine::Lane&) const {
    parallel_values(count, [pass = *this](std::size_t begin, std::size_t end) {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i)
        pass.dst[i] = static_cast<Bits>(pass.src[i] & -Bits{pass.decide[i] > kBound});
    });
  }
};

template <class Bits, Bits kBound>
engine::Task plan_pass(const std::string& name, std::size_t count, const std::byte* decide,
                       const std::byte* src, std::byte* dst) {
  const auto* const deciding = reinterpret_cast<const Bits*>(decide);
  const auto* const from = reinterpret_cast<const Bits*>(src);
  auto* const to = reinterpret_cast<Bits*>(dst);
  return {name,
          {engine::bytes_of(deciding, count), engine::bytes_of(from, count)},
          {engine::bytes_of(to, count)},
          ReluPass<Bits, kBound>{count, deciding, from, to},
          {}};
}

template <class Bits>
engine::Task plan_forward(const std::string& name, std::size_t count, const std::byte* src, std::byte* dst) {
  return plan_pass<Bits, kMinusInfinity<Bits>>(name, count, src, src, dst);
}

template <class Bits>
engine::Task plan_masking(const std::string& name, std::size_t count, const std::byte* value,
                          const std::byte* grad, std::byte* dst) {
  return plan_pass<Bits, Bits{0}>(name, count, value, grad, dst);
}

}  // namespace

engine::Task plan_relu_forward(const std::string& name, std::size_t count, engine::Precision precision,
                               const std::byte* src, std::byte* dst) {
  return precision == engine::Precision::bf16 ? plan_forward<std::int16_t>(name, count, src, dst)
                                              : plan_forward<std::int32_t>(name, count, src, dst);
}

engine::Task plan_relu_mask(const std::string& name, std::size_t count, engine::Precision precision,
                            const std::byte* value, const std::byte* grad, std::byte* dst) {
  return precision == engine::Precision::bf16 ? plan_masking<std::int16_t>(name, count, value, grad, dst)
                                              : plan_masking<std::int32_t>(name, count, value, grad, dst);
}

PlannedGroupPtr plan_relu_group(Planning& planning, const engine::Chain& chain) {
  if (chain.as<model::Relu>(0) == nullptr) return nullptr;
  engine::Contract contract = plain_contract(chain.operation(0).name, chain.inputs[0], chain.inputs[0]);
  contract.relu_at_end = true;
  contract.hands_grad_on = true;
  return simple_group(planning, contract,
                      [count = planning.values_in(contract.dst.value), precision = planning.precision](
                          const std::string& name, const engine::Operands& o) {
                        return plan_relu_forward(name, count, precision, o.src[0], o.dst);
                      });
}

}  // namespace cifar_mpi::cpu
