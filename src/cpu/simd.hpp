#pragma once

/// One loop, compiled for several instruction sets; the best one this processor has is chosen while a task is
/// planned.
///
/// A kernel is a type with a static, always-inlined `run(args...)`. Against `target_clones` this costs three
/// lines more, but it takes templates, needs no ifunc (whose resolver runs before a sanitizer is ready), and
/// the choice is a plain pointer. Everything `run` calls must be inlined too, or it stays in the baseline
/// instruction set.
namespace cifar_mpi::cpu {

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

template <class Kernel, class Result, class... Args>
auto best_of(Result (*)(Args...)) -> Result (*)(Args...) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return &run_avx512<Kernel, Result, Args...>;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
      __builtin_cpu_supports("bmi2")) {
    return &run_avx2<Kernel, Result, Args...>;
  }
  return &run_baseline<Kernel, Result, Args...>;
}

#else

template <class Kernel, class Result, class... Args>
auto best_of(Result (*)(Args...)) -> Result (*)(Args...) {
  return &run_baseline<Kernel, Result, Args...>;
}

#endif

/// The version of `Kernel::run` to call on this processor.
template <class Kernel>
auto best_version() {
  return best_of<Kernel>(static_cast<decltype(&Kernel::run)>(nullptr));
}

}  // namespace cifar_mpi::cpu
