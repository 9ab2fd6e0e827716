#pragma once

namespace cifar_mpi::cpu {

/// The fp32 FMA rate of `threads` threads in FLOP/s, measured for about `seconds` with independent chains of
/// vector FMAs on registers; an FMA counts as two operations. Available in every build.
double measure_peak_flops(int threads, double seconds);

/// Memory bandwidth of `threads` threads, bytes read plus bytes written per second, measured for about
/// `seconds`: the best rate at which they copy arrays larger than their caches.
double measure_copy_rate(int threads, double seconds);

}  // namespace cifar_mpi::cpu
