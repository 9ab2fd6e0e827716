#pragma once

#include <cstdint>
#include <span>

#include "cifar_mpi/base/run_fingerprint.hpp"
#include "cifar_mpi/data/dataset.hpp"

/// Hashes that tell whether two dataset files hold the same samples.
namespace cifar_mpi::data {

/// Σ hash(index, image, label) mod 2^64 over samples [first, first + n) of the file.
///
///   images  [n, h, w, c]
///   labels  [n]
///
/// Sums over any partition of a split add up to the same number, so every rank contributes the samples it
/// holds. Any changed byte or label, or two exchanged samples, change it with probability 1 − 2^-64. Reads
/// the images once, at about memory speed.
std::uint64_t fingerprint(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                          std::uint64_t first);

/// The content of a file as items: counts, image shape, label names, a hash of all labels, and one of 24
/// images spread evenly over the training split and of 8 over the test split. Equal on all ranks when their
/// files are copies of each other; a file that differs in only a few images can pass. Each image costs a read
/// of its chunk of the file, about a millisecond. Throws Error{data}.
RunFingerprint summarize(const DatasetFile& file);

}  // namespace cifar_mpi::data
