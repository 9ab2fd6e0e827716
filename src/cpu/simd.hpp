#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

/// One loop, compiled for several instruction sets; planning a task chooses the best one for this processor.
///
/// A kernel is a type with a static, always-inlined `run(args...)`. Compared with `target_clones` this costs
/// three more lines, but it supports templates, needs no ifunc (whose resolver runs before a sanitizer is
/// ready), and the choice is a plain pointer. Everything that `run` calls must be inlined too, or it stays in
/// the baseline instruction set.
namespace cifar_mpi::cpu {

/// Instruction set of vector kernels, which fixes the number of fp32 lanes.
enum class VectorSet : std::uint8_t { portable, avx2, avx512 };

/// Upper limit for kernels on this processor, at first its best set; planned tasks keep theirs. One per
/// process, like oneDNN's limit.
inline std::atomic<VectorSet> vector_limit{VectorSet::avx512};
inline void limit_vectors(VectorSet most) { vector_limit = most; }

template <class Kernel, class Result, class... Args>
Result run_baseline(Args... args) {
  return Kernel::run(args...);
}

#if defined(__x86_64__)

template <class Kernel, class Result, class... Args>
[[gnu::target("avx2,fma,bmi,bmi2")]] Result run_avx2(Args... args) {
  return Kernel::run(args...);
}

template <class Kernel, class Result, class... Args>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2")]] Result run_avx512(Args... args) {
  return Kernel::run(args...);
}

/// Everything that run_avx2 and run_avx512 are compiled for; a virtual machine may hide some of it.
inline bool has_avx2() {
  return vector_limit >= VectorSet::avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
inline bool has_avx512() {
  return has_avx2() && vector_limit >= VectorSet::avx512 && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

#else

inline bool has_avx512() { return false; }
inline bool has_avx2() { return false; }

#endif

constexpr int lanes_of(VectorSet set) {
  return set == VectorSet::avx512 ? 16 : set == VectorSet::avx2 ? 8 : 4;
}
constexpr const char* name_of(VectorSet set) {
  return set == VectorSet::avx512 ? "AVX-512" : set == VectorSet::avx2 ? "AVX2" : "vectors of 4";
}
/// The sets that this processor has and the limit allows, the best last.
inline std::vector<VectorSet> vector_sets_here() {
  std::vector<VectorSet> sets{VectorSet::portable};
  if (has_avx2()) sets.push_back(VectorSet::avx2);
  if (has_avx512()) sets.push_back(VectorSet::avx512);
  return sets;
}

/// The version for one of these sets, of kernels with vectors of 4, 8 and 16 lanes.
template <class Kernel4, class Kernel8, class Kernel16, class Result, class... Args>
auto version_of([[maybe_unused]] VectorSet set, Result (*)(Args...)) -> Result (*)(Args...) {
#if defined(__x86_64__)
  if (set == VectorSet::avx512) return &run_avx512<Kernel16, Result, Args...>;
  if (set == VectorSet::avx2) return &run_avx2<Kernel8, Result, Args...>;
#endif
  return &run_baseline<Kernel4, Result, Args...>;
}

/// The version to call on this processor, where all sets have one kernel, or each has its own as in version_of.
template <class Kernel4, class Kernel8 = Kernel4, class Kernel16 = Kernel8>
auto best_version() {
  return version_of<Kernel4, Kernel8, Kernel16>(vector_sets_here().back(),
                                                static_cast<decltype(&Kernel4::run)>(nullptr));
}

/// The version of `Kernel<lanes>::run` for one of these sets.
template <template <int> class Kernel>
auto version_for(VectorSet set) {
  return version_of<Kernel<4>, Kernel<8>, Kernel<16>>(set, static_cast<decltype(&Kernel<4>::run)>(nullptr));
}

/// As measure_peak_flops of cifar_mpi/cpu/backend.hpp, with these instructions instead of the best ones.
double measure_peak_flops(VectorSet set, int threads, double seconds);

}  // namespace cifar_mpi::cpu
