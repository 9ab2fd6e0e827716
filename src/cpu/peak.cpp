#include "cifar_mpi/cpu/peak.hpp"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {
namespace {

using Vector =
    float __attribute__((vector_size(64)));  // one AVX-512 register, two AVX2 registers, four of SSE or NEON
constexpr int kChains = 12;  // more than latency (4) times pipes (2), few enough for 32 registers
constexpr int kRounds = 20'000;

struct Fma {
  [[gnu::always_inline]] static float run(float start) {
    Vector chains[kChains];
    for (int c = 0; c < kChains; ++c) chains[c] = Vector{} + (start + static_cast<float>(c));
    const Vector a = Vector{} + 0.999f;
    const Vector b = Vector{} + start;
    for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
      for (int c = 0; c < kChains; ++c) chains[c] = chains[c] * a + b;
    }
    for (int c = 1; c < kChains; ++c) chains[0] += chains[c];
    return chains[0][0];
  }
};

/// Rounds per second of one thread, at its best moment: the ceiling is what the core can do, not what a
/// neighbour left.
double best_rate(double seconds, float& keep) {
  const auto fma = best_version<Fma>();
  double best = 0.0;
  const double end = steady_seconds() + seconds;
  while (true) {
    const double begin = steady_seconds();
    if (begin >= end) return best;
    keep += fma(0.001f);
    best = std::max(best, kRounds / (steady_seconds() - begin));
  }
}

}  // namespace

double measure_peak_flops(int threads, double seconds) {
  std::vector<double> rates(static_cast<std::size_t>(threads));
  std::vector<float> keep(rates.size());
  std::vector<std::thread> workers;
  for (std::size_t t = 1; t < rates.size(); ++t) {
    workers.emplace_back([&, t] { rates[t] = best_rate(seconds, keep[t]); });
  }
  rates[0] = best_rate(seconds, keep[0]);
  for (std::thread& worker : workers) worker.join();
  volatile float sink = 0.0f;
  double sum = 0.0;
  for (std::size_t t = 0; t < rates.size(); ++t) {
    sum += rates[t];
    sink = sink + keep[t];
  }
  constexpr double kFlopsPerRound = 2.0 * kChains * (sizeof(Vector) / sizeof(float));
  return sum * kFlopsPerRound;
}

}  // namespace cifar_mpi::cpu
