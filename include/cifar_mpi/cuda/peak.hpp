#pragma once

namespace cifar_mpi::cuda {

/// FLOP/s of a large bf16 matrix product (4096³, random values, on the GPU in use), repeated for about
/// `seconds`: what the share of a step on a GPU refers to. `threads` says nothing here. Throws Error{device}
/// when there is no GPU.
double measure_peak_flops(int threads, double seconds);

/// Bytes per second of a large copy within the GPU, read and written bytes counted.
double measure_copy_rate(double seconds);

}  // namespace cifar_mpi::cuda
