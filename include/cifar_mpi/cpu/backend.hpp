#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// The cpu backend. Throws Error{device} when this binary lacks it or the machine cannot run it.
std::unique_ptr<engine::Backend> make_backend(const engine::BackendOptions& options);

/// An upper limit for the instruction set of oneDNN and of our own kernels.
enum class InstructionSet : std::uint8_t { automatic, avx2, portable };
constexpr auto names_of(InstructionSet) {
  return std::to_array<Name<InstructionSet>>({{"auto", InstructionSet::automatic},
                                              {"avx2", InstructionSet::avx2},
                                              {"portable", InstructionSet::portable}});
}

/// Limits the instruction set of the whole process, before the first backend exists, so that kernels for
/// other processors can be timed and tested. Throws Error{device} if the processor lacks the set, or if
/// oneDNN already uses another.
void limit_instructions(InstructionSet most);

/// Why this process cannot use the cpu backend, in a few words; empty if it can.
std::string unusable();

/// One line about this build, for `--check-build`.
std::string describe();

/// The fp32 FMA rate of `threads` threads in FLOP/s, measured for about `seconds` with independent chains of
/// vector FMAs on registers; an FMA counts as two operations. Available in every build.
double measure_peak_flops(int threads, double seconds);

/// Memory bandwidth of `threads` threads, bytes read plus bytes written per second, measured for about
/// `seconds`: the best rate at which they copy arrays larger than their caches.
double measure_copy_rate(int threads, double seconds);

}  // namespace cifar_mpi::cpu
