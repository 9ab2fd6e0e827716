#pragma once

namespace cifar_mpi::cpu {

/// The fp32 multiply-add rate of `threads` threads in FLOP/s, measured for about `seconds`: independent
/// chains of vector FMAs on registers, two operations each. Available in every build.
double measure_peak_flops(int threads, double seconds);

/// Bytes that `threads` threads read from memory and write to it in a second, the sum of both, measured for about `seconds`: each
/// copies an array that its caches do not hold, at its best moment.
double measure_copy_rate(int threads, double seconds);

}  // namespace cifar_mpi::cpu
