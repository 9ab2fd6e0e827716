#pragma once

namespace cifar_mpi::cpu {

/// The fp32 multiply-add rate of `threads` threads in FLOP/s, measured for about `seconds`: independent
/// chains of vector FMAs on registers, two operations each. It is the ceiling that `share of FMA limit`
/// refers to. Available in every build.
double measure_peak_flops(int threads, double seconds);

}  // namespace cifar_mpi::cpu
