#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// The cpu backend. Throws Error{device} when this binary was built without it or the machine cannot run it.
std::unique_ptr<engine::Backend> make_backend(const engine::BackendOptions& options);

/// The most instructions that own kernels and oneDNN's use.
enum class InstructionSet : std::uint8_t { automatic, avx2, portable };
constexpr auto names_of(InstructionSet) {
  return std::to_array<Name<InstructionSet>>({{"auto", InstructionSet::automatic},
                                              {"avx2", InstructionSet::avx2},
                                              {"portable", InstructionSet::portable}});
}

/// Before the first backend is made, for the whole process: so kernels of other processors can be timed and tested. Throws
/// Error{device} where the processor has not even these, or oneDNN has begun to use others.
void limit_instructions(InstructionSet most);

/// Why this process cannot use the cpu backend, in a few words; empty when it can.
std::string unusable();

/// What this build has, in one line, for `--check-build`.
std::string describe();

}  // namespace cifar_mpi::cpu
