#include "cifar_mpi/engine/kernels.hpp"

#include <stdexcept>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::engine {

void Group::to_logical(std::size_t, std::span<const float>, std::span<float>) const {
  throw std::logic_error(concat(contract().name, " has no parameters"));
}

void Group::from_logical(std::size_t, std::span<const float>, std::span<float>) const {
  throw std::logic_error(concat(contract().name, " has no parameters"));
}

}  // namespace cifar_mpi::engine
