#pragma once

#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {

/// As the public function, with these instructions instead of the best ones.
double measure_peak_flops(VectorSet set, int threads, double seconds);

}  // namespace cifar_mpi::cpu
