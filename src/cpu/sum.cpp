#include "cpu/sum.hpp"

#include <utility>

#include "cifar_mpi/engine/step_tasks.hpp"
#include "cpu/parallel.hpp"

namespace cifar_mpi::cpu {

engine::Task plan_sum(std::string name, const engine::SumBinding& binding) {
  engine::Task task = engine::declare_sum(std::move(name), binding);
  task.start = [binding](engine::Lane&) {
    parallel_values(binding.floats, [&](std::size_t begin, std::size_t end) {
      const auto [dst, a, b, floats, share, sign] = binding;
      if (b == nullptr) {
#pragma omp simd
        for (std::size_t i = begin; i < end; ++i) dst[i] = share * a[i];
      } else {
#pragma omp simd
        for (std::size_t i = begin; i < end; ++i) dst[i] = share * (a[i] + sign * b[i]);
      }
    });
  };
  return task;
}

}  // namespace cifar_mpi::cpu
