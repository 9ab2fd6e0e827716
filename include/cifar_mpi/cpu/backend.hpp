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

}  // namespace cifar_mpi::cpu
