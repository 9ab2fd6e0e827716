#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cifar_mpi/comm/update.hpp"

namespace cifar_mpi::comm {

/// The first server's counts of pushes, in one block that is sent with its answers.
class PushTally {
 public:
  explicit PushTally(int workers)
      : workers_(static_cast<std::size_t>(workers)), values_(2 * workers_ + PushCounts::kStalenesses + 1) {}

  void count_applied(int worker, std::uint64_t staleness) {
    ++values_[static_cast<std::size_t>(worker)];
    ++values_[2 * workers_ + std::min<std::uint64_t>(staleness, PushCounts::kStalenesses - 1)];
    values_.back() = std::max(values_.back(), staleness);
  }
  void count_dropped(int worker) { ++values_[workers_ + static_cast<std::size_t>(worker)]; }

  std::span<std::uint64_t> values() { return values_; }
  std::span<const std::uint64_t> values() const { return values_; }

  std::vector<std::uint64_t> applied() const { return part(0, workers_); }
  std::vector<std::uint64_t> dropped() const { return part(workers_, workers_); }
  std::vector<std::uint64_t> staleness() const { return part(2 * workers_, PushCounts::kStalenesses); }
  std::uint64_t most_stale() const { return values_.back(); }

 private:
  std::vector<std::uint64_t> part(std::size_t begin, std::size_t count) const {
    const auto first = values_.begin() + static_cast<std::ptrdiff_t>(begin);
    return {first, first + static_cast<std::ptrdiff_t>(count)};
  }

  std::size_t workers_;
  std::vector<std::uint64_t> values_;
};

}  // namespace cifar_mpi::comm
