#include "cpu/parallel.hpp"

#include <omp.h>

#include "cifar_mpi/base/signals.hpp"
#include "cpu/team.hpp"

namespace cifar_mpi::cpu {
namespace {

thread_local LoopObserver* observer = nullptr;

/// One per process, like oneDNN's OpenMP team; it lives until the process ends.
Team& team() {
  static Team* const all = new Team;
  return *all;
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

int loop_threads() { return team().size(); }
void set_loop_threads(int threads) {
  team().resize(threads);
  omp_set_num_threads(threads);
  const SignalBlock block;  // oneDNN's threads start here with signals blocked: see app/signals.cpp
#pragma omp parallel
  static_cast<void>(omp_get_thread_num());
}
int loop_thread() { return Team::thread_number(); }

void parallel_ranges(std::ptrdiff_t items, RangeBody body, std::ptrdiff_t together) {
  if (observer != nullptr && items > 0) return observer->on_loop(items, items, body);
  team().run(items, body, together);
}

void parallel_ranges_of_parts(std::ptrdiff_t items, int parts, RangeBody body) {
  if (observer != nullptr && items > 0) return observer->on_loop(items, parts, body);
  team().run(parts, body);
}

}  // namespace cifar_mpi::cpu
