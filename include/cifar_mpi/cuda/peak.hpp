#pragma once

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/roofline.hpp"

namespace cifar_mpi::cuda {

/// FLOP/s of a large matrix product in `precision`, a resolved one (4096³, random values, on the GPU in use),
/// repeated for about `seconds`. Throws Error{device} when there is no GPU.
double measure_peak_flops(engine::Precision precision, double seconds);

/// Bytes per second of a large copy within the GPU, read and written bytes counted.
double measure_copy_rate(double seconds);

/// Both in a moment and in little memory, for floors that need no precision: of sizes that grow until one run takes
/// 0.2 ms. The rate of bytes is that of a kernel of ours.
engine::RooflineLimits measure_limits(engine::Precision precision);

}  // namespace cifar_mpi::cuda
