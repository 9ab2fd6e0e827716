#pragma once

#include <array>
#include <cstdint>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/base/random.hpp"

/// The order of samples in an endless stream of permutations: a function of the step number, without state or tables.
namespace cifar_mpi::data {

/// Samples [first, first + count) of the file.
struct Shard {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// The part of `total` samples that rank `rank` of `ranks` owns: [rN/P, (r+1)N/P). Sizes differ by at most
/// one.
constexpr Shard shard_of(std::uint64_t total, std::uint64_t rank, std::uint64_t ranks) {
  const std::uint64_t first = rank * total / ranks;
  return {first, (rank + 1) * total / ranks - first};
}

/// Position `index` of permutation number `key` of {0, ..., n-1}: a bijection for every (key, n), n ≥ 1.
///
/// A balanced Feistel network over the smallest even number of bits that holds n, walked until it lands below
/// n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). Fewer than four steps on average.
constexpr std::uint64_t permuted(std::uint64_t index, std::uint64_t n, std::array<std::uint32_t, 2> key) {
  int half = 1;
  while (half < 31 && (std::uint64_t{1} << (2 * half)) < n) ++half;
  const std::uint32_t mask = (std::uint32_t{1} << half) - 1;
  do {
    std::uint32_t left = static_cast<std::uint32_t>(index >> half) & mask;
    std::uint32_t right = static_cast<std::uint32_t>(index) & mask;
    for (std::uint32_t round = 0; round < 6; ++round) {
      std::uint32_t h =
          (right + key[round & 1] + round * 0x9E3779B9u) * 0x85EBCA6Bu;  // MurmurHash3's finalizer
      h ^= h >> 15;
      h = (h + key[~round & 1]) * 0xC2B2AE35u;
      h ^= h >> 16;
      const std::uint32_t next = left ^ (h & mask);
      left = right;
      right = next;
    }
    index = (std::uint64_t{left} << half) | right;
  } while (index >= n);
  return index;
}

/// One sample of a batch.
struct SampleRef {
  std::uint64_t id = 0;     ///< index in the file; augmentation is keyed by it
  std::uint64_t local = 0;  ///< index among the samples this rank holds
  std::uint32_t epoch = 0;  ///< of this sample: which permutation of the stream
};

/// shard: a rank streams through its own contiguous part. global: one stream of all samples, cut into batches
/// and slices, so the global batches are the same for every number of ranks.
enum class Shuffle : std::uint8_t { shard, global };
constexpr auto names_of(Shuffle) {
  return std::to_array<Name<Shuffle>>({{"shard", Shuffle::shard}, {"global", Shuffle::global}});
}

/// The order in which one rank sees its samples; a plain value, copied into tasks and onto devices.
class SampleOrder {
 public:
  SampleOrder() = default;
  /// `total` ≥ `ranks` samples in the file, `batch` samples per rank and step; the caller has checked both.
  constexpr SampleOrder(Shuffle shuffle, std::uint64_t seed, std::uint64_t total, int rank, int ranks,
                        int batch)
      : seed_(seed), batch_(static_cast<std::uint64_t>(batch)) {
    const auto r = static_cast<std::uint64_t>(rank);
    const auto p = static_cast<std::uint64_t>(ranks);
    if (shuffle == Shuffle::shard) {
      held_ = shard_of(total, r, p);
      stride_ = batch_;
    } else {
      held_ = {0, total};
      stride_ = batch_ * p;
      offset_ = batch_ * r;
    }
  }

  /// What this rank must hold in memory.
  constexpr Shard held() const { return held_; }

  /// Sample `i` of this rank's batch in step `step` (both from 0). `i` may be any, so a batch may be read in parts.
  constexpr SampleRef at(std::uint64_t step, std::uint64_t i) const {
    const std::uint64_t position = step * stride_ + offset_ + i;
    const std::uint64_t epoch = position / held_.count;
    const Random4 key =
        random4(seed_, RandomPurpose::sample_order, epoch, static_cast<std::uint32_t>(held_.first));
    const std::uint64_t local = permuted(position - epoch * held_.count, held_.count, {key[0], key[1]});
    return {held_.first + local, local, static_cast<std::uint32_t>(epoch)};
  }

 private:
  std::uint64_t seed_ = 0;
  std::uint64_t batch_ = 0;
  std::uint64_t stride_ = 0;
  std::uint64_t offset_ = 0;
  Shard held_;
};

}  // namespace cifar_mpi::data
