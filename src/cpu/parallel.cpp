#include "cpu/parallel.hpp"

#include <omp.h>

namespace cifar_mpi::cpu {
namespace {

thread_local LoopObserver* observer = nullptr;

void share_out(std::ptrdiff_t items, RangeBody body) {
  const int threads = loop_threads();
  if (items == 0) return;
  if (threads == 1) return body({0, items});
#pragma omp parallel num_threads(threads)
  {
    const Range own = range_of(items, omp_get_num_threads(), omp_get_thread_num());
    if (own.size() > 0) body(own);
  }
}

}  // namespace

LoopObserver::LoopObserver() { observer = this; }
LoopObserver::~LoopObserver() { observer = nullptr; }
LoopObserver* LoopObserver::here() { return observer; }

double slowdown(std::ptrdiff_t items, int threads) {
  if (items == 0) return 1.0;
  std::ptrdiff_t most = 0;
  for (int t = 0; t < threads; ++t) {
    const std::ptrdiff_t size = range_of(items, threads, t).size();
    if (size > most) most = size;
  }
  return static_cast<double>(most) * threads / static_cast<double>(items);
}

int loop_threads() { return omp_get_max_threads(); }
void set_loop_threads(int threads) { omp_set_num_threads(threads); }
int loop_thread() { return omp_get_thread_num(); }

void parallel_ranges(std::ptrdiff_t items, RangeBody body) {
  if (observer != nullptr && items > 0) return observer->on_loop(items, items, body);
  share_out(items, body);
}

void parallel_ranges_of_parts(std::ptrdiff_t items, int parts, RangeBody body) {
  if (observer != nullptr && items > 0) return observer->on_loop(items, parts, body);
  share_out(parts, body);
}

}  // namespace cifar_mpi::cpu
