#include "cpu/copy.hpp"

#include <cstring>
#include <utility>

#include "cifar_mpi/engine/step_tasks.hpp"
#include "cpu/parallel.hpp"

namespace cifar_mpi::cpu {

engine::Task plan_copy(std::string name, const std::vector<engine::CopyBinding>& bindings) {
  engine::Task task = engine::declare_copy(std::move(name), bindings);
  task.start = [bindings](engine::Lane&) {
    for (const engine::CopyBinding& copy : bindings) {
      if (copy.bytes != 0) std::memcpy(copy.dst, copy.src, copy.bytes);
    }
  };
  return task;
}

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

engine::Task plan_increment(std::string name, std::uint64_t* counter) {
  engine::Task task = engine::declare_increment(std::move(name), counter);
  task.start = [counter](engine::Lane&) { ++*counter; };
  return task;
}

}  // namespace cifar_mpi::cpu
