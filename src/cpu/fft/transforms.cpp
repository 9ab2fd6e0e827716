#include "cpu/fft/transforms.hpp"

#include <stdexcept>
#include <type_traits>

#include "cifar_mpi/base/text.hpp"
#include "cpu/fft/versions.hpp"

namespace cifar_mpi::cpu::fft {
namespace {

template <int kLength>
struct Fourier {
  static constexpr bool kInverts = true;
  static constexpr int kSide = kLength;
  template <class V>
  using Of = ImageFft<V, kLength>;
};

/// Returns what `body` returns for the length, passed as a type.
template <class Body>
auto with_length(int length, const Body& body) {
  switch (length) {
    case 8:
      return body(std::integral_constant<int, 8>{});
    case 10:
      return body(std::integral_constant<int, 10>{});
    case 14:
      return body(std::integral_constant<int, 14>{});
    case 16:
      return body(std::integral_constant<int, 16>{});
    case 28:
      return body(std::integral_constant<int, 28>{});
    case 32:
      return body(std::integral_constant<int, 32>{});
    default:
      throw std::logic_error(concat("there is no transform of length ", length));
  }
}

}  // namespace

Transforms transforms_for(int length, VectorSet set, engine::Precision precision) {
  return with_length(length, [&](auto n) {
    using Transform = Fourier<n>;
    return precision == engine::Precision::bf16 ? versions_of<Transform, bf16>(set)
                                                : versions_of<Transform, float>(set);
  });
}

TransformFlops transform_flops(int length, const Placement& at) {
  return with_length(length, [&](auto n) { return flops_of<Fourier<n>>(at); });
}

}  // namespace cifar_mpi::cpu::fft
