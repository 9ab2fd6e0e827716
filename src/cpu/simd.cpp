#include "cpu/simd.hpp"

#include <atomic>

namespace cifar_mpi::cpu {
namespace {

std::atomic<VectorSet> limit{VectorSet::avx512};

}  // namespace

void limit_vectors(VectorSet most) { limit = most; }
VectorSet vector_limit() { return limit; }

}  // namespace cifar_mpi::cpu
