#include "cpu/sum.hpp"

#include <utility>

#include "cpu/parallel.hpp"

namespace cifar_mpi::cpu {
namespace {

/// A task that writes `dst` from `a`, and from `b` unless it is null.
engine::Task elementwise(std::string name, const float* dst, const float* a, const float* b, std::size_t n) {
  engine::Task task;
  task.name = std::move(name);
  task.reads = {engine::bytes_of(a, n)};
  if (b != nullptr) task.reads.push_back(engine::bytes_of(b, n));
  task.writes = {engine::bytes_of(dst, n)};
  return task;
}

}  // namespace

engine::Task plan_sum(std::string name, float* dst, const float* a, const float* b, std::size_t n) {
  engine::Task task = elementwise(std::move(name), dst, a, b, n);
  task.start = [dst, a, b, n](engine::Lane&) {
    if (b == nullptr) {
      parallel_values(n, [=](std::size_t begin, std::size_t end) {
#pragma omp simd
        for (std::size_t i = begin; i < end; ++i) dst[i] = a[i];
      });
    } else {
      parallel_values(n, [=](std::size_t begin, std::size_t end) {
#pragma omp simd
        for (std::size_t i = begin; i < end; ++i) dst[i] = a[i] + b[i];
      });
    }
  };
  return task;
}

engine::Task plan_share(std::string name, float* dst, const float* a, const float* b, float share,
                        std::size_t n) {
  engine::Task task = elementwise(std::move(name), dst, a, b, n);
  task.start = [dst, a, b, share, n](engine::Lane&) {
    if (b == nullptr) {
      parallel_values(n, [=](std::size_t begin, std::size_t end) {
#pragma omp simd
        for (std::size_t i = begin; i < end; ++i) dst[i] = share * a[i];
      });
    } else {
      parallel_values(n, [=](std::size_t begin, std::size_t end) {
#pragma omp simd
        for (std::size_t i = begin; i < end; ++i) dst[i] = share * (a[i] - b[i]);
      });
    }
  };
  return task;
}

}  // namespace cifar_mpi::cpu
