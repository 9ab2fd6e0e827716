#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/cpu/backend.hpp"
#include "cpu/simd.hpp"
#include "cpu/vectors.hpp"

namespace cifar_mpi::cpu {
namespace {

constexpr int kChains =
    12;  // more than latency (4) times pipes (2), and few enough for 16 registers with both operands
constexpr int kRounds = 20'000;

template <int kLanes>
struct Fma {
  [[gnu::always_inline]] static float run(float start) {
    using Vector = Vec<kLanes>;
    Vector chains[kChains];
    for (int c = 0; c < kChains; ++c) chains[c] = broadcast<Vector>(start + static_cast<float>(c));
    const Vector a = broadcast<Vector>(0.999f);
    const Vector b = broadcast<Vector>(start);
    for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
      for (int c = 0; c < kChains; ++c) chains[c] = chains[c] * a + b;
    }
    for (int c = 1; c < kChains; ++c) chains[0] += chains[c];
    return chains[0][0];
  }
};

/// The best rate per second at which `threads` threads together do the work that `make_work()` gives each of
/// them: the ceiling of the cores, without losses to other processes.
template <class MakeWork>
double best_rate(int threads, double seconds, const MakeWork& make_work) {
  std::vector<double> rates(static_cast<std::size_t>(threads));
  std::barrier ready(threads);  // what they share, they share from the first piece of work on
  const auto measure = [&](double& rate) {
    auto work = make_work();
    ready.arrive_and_wait();
    const double end = steady_seconds() + seconds;
    do {  // once even if this thread loses its core for all of the time
      const double begin = steady_seconds();
      work();
      rate = std::max(rate, 1.0 / (steady_seconds() - begin));
    } while (steady_seconds() < end);
  };
  std::vector<std::thread> workers;
  for (std::size_t t = 1; t < rates.size(); ++t) workers.emplace_back([&, t] { measure(rates[t]); });
  measure(rates[0]);
  for (std::thread& worker : workers) worker.join();
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace

double measure_peak_flops(VectorSet set, int threads, double seconds) {
  const double flops = 2.0 * kRounds * kChains * lanes_of(set);
  return flops * best_rate(threads, seconds, [set] {
           return [fma = version_for<Fma>(set)] {
             volatile float sink = fma(0.001f);
             static_cast<void>(sink);
           };
         });
}

double measure_peak_flops(int threads, double seconds) {
  return measure_peak_flops(vector_sets_here().back(), threads, seconds);
}

double measure_copy_rate(int threads, double seconds) {
  // A block is more than a core's own caches hold, and is copied before other work gets the core.
  constexpr std::size_t kBlock = std::size_t{4} << 20, kBytes = 8 * kBlock;
  return 2.0 * kBlock * best_rate(threads, seconds, [] {
           // the arrays of a step are on huge pages, too; small pages take longer to provide than the copies
           return [from = allocate_on_huge_pages(kBytes), to = allocate_on_huge_pages(kBytes),
                   at = std::size_t{0}]() mutable {
             std::memcpy(to.data() + at, from.data() + at, kBlock);
             at = (at + kBlock) % kBytes;
           };
         });
}

}  // namespace cifar_mpi::cpu
