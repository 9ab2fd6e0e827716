#pragma once

#include <cstdint>

/// Sums whose order is fixed; runs on the host and on the device.
namespace cifar_mpi::cuda {

/// Adds one value per rank in the order of the host collective `doubling`: with K the largest power of two
/// that is at most `ranks`, the first ranks − K pairs (2i, 2i + 1) are added first; these and the remaining
/// ranks are the leaves of a balanced binary tree. At most 2^20 ranks. `read(rank)` returns a rank's value.
template <class Read>
constexpr float tree_sum(int ranks, Read read) {
  int leaves = 1;
  while (2 * leaves <= ranks) leaves *= 2;
  const int pairs = ranks - leaves;
  float partial[21] =
      {};  // partial[level]: a finished subtree of 2^level leaves, as a binary counter holds its digits
  float sum = 0.0f;
  for (int i = 0; i < leaves; ++i) {
    sum = i < pairs ? read(2 * i) + read(2 * i + 1) : read(i + pairs);
    int level = 0;
    for (; (i >> level & 1) != 0; ++level) sum = partial[level] + sum;
    partial[level] = sum;
  }
  return sum;
}

/// tree_sum of `kRanks` values, a power of two, that have all been read.
template <int kRanks>
constexpr float tree_of(const float* values) {
  if constexpr (kRanks == 1) {
    return *values;
  } else {
    return tree_of<kRanks / 2>(values) + tree_of<kRanks / 2>(values + kRanks / 2);
  }
}

/// Division of the sum over a matrix's rows: one block sums each chunk of rows, and the last block adds the
/// chunks in order. Constants, because they affect bits: enough chunks to give each multiprocessor several
/// blocks, and few enough for the last block to add them in a microsecond.
struct ColumnChunks {
  std::int64_t rows = 0;
  std::int64_t rows_per_chunk = 1;
  int chunks = 1;

  constexpr std::int64_t begin(int chunk) const {
    const std::int64_t row = chunk * rows_per_chunk;
    return row < rows ? row : rows;
  }
};

constexpr ColumnChunks column_chunks(std::int64_t rows) {
  constexpr std::int64_t kLeastRows = 256;
  constexpr std::int64_t kMostChunks = 512;
  const std::int64_t even = (rows + kMostChunks - 1) / kMostChunks;
  const std::int64_t per_chunk = even < kLeastRows ? kLeastRows : even;
  const std::int64_t chunks = (rows + per_chunk - 1) / per_chunk;
  return {rows, per_chunk, static_cast<int>(chunks < 1 ? 1 : chunks)};
}

}  // namespace cifar_mpi::cuda
