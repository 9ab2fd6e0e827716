#include "comm/rounds.hpp"

#include <mpi.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cifar_mpi/base/clock.hpp"
#include "comm/mpi_check.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

/// Each sum multiplies the values by the number of ranks; the speed does not depend on values.
constexpr int kMostSums = 32;

float input(int rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 11) % 3) - 1.0f;
}

/// `sorted` is not empty.
double quantile(const std::vector<double>& sorted, double q) {
  return sorted[std::min(sorted.size() - 1,
                         static_cast<std::size_t>(q * static_cast<double>(sorted.size())))];
}

/// Each number becomes the largest of all ranks, the same on all.
void take_largest(std::span<double> values, const World& world) {
  check(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                      WorldAccess::all(world)),
        "finding the slowest rank");
}

int times_within(double run_s, double one_s, int most) {
  return static_cast<int>(std::clamp(run_s / std::max(one_s, 1e-9), 1.0, static_cast<double>(most)));
}

}  // namespace

void fill_inputs(std::span<float> data, int rank) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = input(rank, i);
}

std::uint64_t wrong_sums(std::span<const float> data, const World& world) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    float sum = 0.0f;
    for (int r = 0; r < world.size(); ++r) sum += input(r, i);
    wrong += data[i] != sum ? 1 : 0;
  }
  check(MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UINT64_T, MPI_SUM, WorldAccess::all(world)),
        "counting wrong sums");
  return wrong;
}

double Measured::median() const { return quantile(seconds, 0.5); }

Rounds::Rounds(const World& world, Pace pace, Measured copy, std::vector<Measured> sums)
    : world_(world), pace_(pace), copy_(std::move(copy)), sums_(std::move(sums)) {
  plan(copy_, 1);
  for (Measured& sum : sums_) plan(sum, 1);
}

void Rounds::plan(Measured& measured, int times) {
  measured.times = times;
  if (measured.plan) measured.plan(times);
}

void Rounds::time(Measured& measured) {
  if (measured.prepare) measured.prepare();
  world_.barrier();
  const double begin = steady_seconds();
  measured.run(measured.times);
  measured.seconds.push_back((steady_seconds() - begin) / measured.times);
}

/// Returns the seconds of all of it, including the preparation.
double Rounds::round() {
  const double begin = steady_seconds();
  time(copy_);
  for (Measured& sum : sums_) time(sum);
  return steady_seconds() - begin;
}

/// The number of sums that gives the fastest algorithm the required run time.
void Rounds::choose_times() {
  double fastest_s[] = {copy_.seconds.back(), std::numeric_limits<double>::max()};
  for (const Measured& sum : sums_) fastest_s[1] = std::min(fastest_s[1], sum.seconds.back());
  take_largest(fastest_s, world_);
  plan(copy_, times_within(pace_.run_s, fastest_s[0], pace_.most_copies));
  for (Measured& sum : sums_) plan(sum, times_within(pace_.run_s, fastest_s[1], kMostSums));
}

void Rounds::forget() {
  copy_.seconds.clear();
  for (Measured& sum : sums_) sum.seconds.clear();
}

void Rounds::run(double seconds) {
  constexpr int kFewest = 5;
  constexpr int kMost = 20000;
  round();  // pages, connections and caches warm up
  round();
  choose_times();
  double one[] = {round()};
  take_largest(one, world_);
  forget();
  const double fitting = std::clamp(seconds / one[0], double{kFewest}, double{kMost});
  for (int i = 0; i < static_cast<int>(fitting); ++i) round();
  const auto keep_slowest = [&](Measured& measured) {
    take_largest(measured.seconds, world_);
    std::ranges::sort(measured.seconds);
  };
  keep_slowest(copy_);
  for (Measured& sum : sums_) {
    keep_slowest(sum);
    if (sum.plan) sum.plan(1);
    if (sum.prepare) sum.prepare();
    sum.run(1);
  }
}

AllReduceTiming Rounds::timing(const Measured& sum, std::size_t bytes) const {
  AllReduceTiming t;
  t.bytes = bytes;
  t.ranks = world_.size();
  t.runs = static_cast<int>(sum.seconds.size());
  t.sums_per_run = sum.times;
  t.least_s = sum.seconds.front();
  t.median_s = sum.median();
  t.p99_s = quantile(sum.seconds, 0.99);
  t.copy_bytes_per_s = static_cast<double>(bytes) / copy_.median();
  return t;
}

}  // namespace cifar_mpi::comm
