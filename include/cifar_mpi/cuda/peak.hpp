#pragma once

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/roofline.hpp"

namespace cifar_mpi::cuda {

/// FLOP/s of a large matrix product in `precision`, which must be resolved (4096³, random values, on the GPU
/// in use), repeated for about `seconds`. Throws Error{device} when there is no GPU.
double measure_peak_flops(engine::Precision precision, double seconds);

/// Bytes per second of a large copy within the GPU, counting bytes read and written.
double measure_copy_rate(double seconds);

/// Quick estimates of both that need little memory, for roofline times that need no precision: sizes grow
/// until one run takes 0.2 ms. A kernel of ours measures the rate of bytes.
engine::RooflineLimits measure_limits(engine::Precision precision);

}  // namespace cifar_mpi::cuda
