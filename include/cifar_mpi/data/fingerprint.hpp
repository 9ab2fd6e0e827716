#pragma once

#include <cstdint>
#include <span>

#include "cifar_mpi/base/run_fingerprint.hpp"
#include "cifar_mpi/data/dataset.hpp"

/// Whether two dataset files hold the same samples, without comparing them byte by byte.
namespace cifar_mpi::data {

/// Σ hash(index, image, label) mod 2^64 over samples that stand at [first, first + n) of the file.
///
///   images  [n, h, w, c]
///   labels  [n]
///
/// Sums over any partition of a split add up to the same number, so every rank contributes the samples it
/// holds. Changes when any byte or label does, or two samples change places, but for chance (2^-64).
/// Reads the images once, about as fast as memory.
std::uint64_t fingerprint(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                          std::uint64_t first);

/// What a file holds, item by item: counts, image shape, label names, a hash of all labels, and one of 24
/// images spread evenly over the training split and of 8 over the test split. Equal on all ranks when their
/// files are copies of each other; a file that differs in a few images only can pass. Each
/// image costs the reading of its chunk of the file, about a millisecond. Throws Error{data}.
RunFingerprint summarize(const DatasetFile& file);

}  // namespace cifar_mpi::data
