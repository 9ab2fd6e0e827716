#include "cpu/relu.hpp"

#include <cstdint>

namespace cifar_mpi::cpu {
namespace {

// As signed integers, bf16 and fp32 values order like the numbers they are, so "> 0" is one comparison and a
// positive NaN passes, as it does through oneDNN's ReLU.
template <class Bits>
struct ReluPass {
  std::size_t count;
  const Bits* sign_of;  ///< values whose sign decides
  const Bits* src;
  Bits* dst;

  void operator()(engine::Lane&) const {
#pragma omp parallel for simd schedule(static)
    for (std::size_t i = 0; i < count; ++i) dst[i] = static_cast<Bits>(src[i] & -Bits{sign_of[i] > 0});
  }
};

template <class Bits>
engine::Task plan_pass(const std::string& name, std::size_t count, const std::byte* sign_of,
                       const std::byte* src, std::byte* dst) {
  const auto* const sign = reinterpret_cast<const Bits*>(sign_of);
  const auto* const from = reinterpret_cast<const Bits*>(src);
  auto* const to = reinterpret_cast<Bits*>(dst);
  return {name,
          {engine::bytes_of(sign, count), engine::bytes_of(from, count)},
          {engine::bytes_of(to, count)},
          ReluPass<Bits>{count, sign, from, to},
          {}};
}

engine::Task plan_either(const std::string& name, std::size_t count, engine::Precision precision,
                         const std::byte* sign_of, const std::byte* src, std::byte* dst) {
  return precision == engine::Precision::bf16 ? plan_pass<std::int16_t>(name, count, sign_of, src, dst)
                                              : plan_pass<std::int32_t>(name, count, sign_of, src, dst);
}

}  // namespace

engine::Task plan_relu_forward(const std::string& name, std::size_t count, engine::Precision precision,
                               const std::byte* src, std::byte* dst) {
  return plan_either(name, count, precision, src, src, dst);
}

engine::Task plan_relu_backward(const std::string& name, std::size_t count, engine::Precision precision,
                                const std::byte* value, std::byte* grad) {
  return plan_either(name, count, precision, value, grad, grad);
}

}  // namespace cifar_mpi::cpu
