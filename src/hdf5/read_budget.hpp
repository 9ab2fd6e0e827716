#pragma once

#include <cstdint>

namespace cifar_mpi::hdf5 {

/// The memory that reading one file may take in total: 8 times the file's bytes and 64 MB.
///
/// A file of ours needs less than 8 times its size. An untrusted one can give an object many names, or hold
/// two lists whose product is large, so a reader takes each allocation from this budget first.
class ReadBudget {
 public:
  static constexpr std::uint64_t kTimesTheFile = 8, kBase = 64'000'000;

  explicit ReadBudget(std::uint64_t file_bytes = 0) {
    if (__builtin_mul_overflow(file_bytes, kTimesTheFile, &left_) ||
        __builtin_add_overflow(left_, kBase, &left_))
      left_ = UINT64_MAX;
  }

  /// Takes `count` times `bytes`. Returns false, and takes nothing, when less is left.
  [[nodiscard]] bool take(std::uint64_t count, std::uint64_t bytes) {
    std::uint64_t wanted = 0;
    if (__builtin_mul_overflow(count, bytes, &wanted) || wanted > left_) return false;
    left_ -= wanted;
    return true;
  }

  /// Whether `take` would succeed: for memory that is given back at once.
  bool covers(std::uint64_t count, std::uint64_t bytes) const { return ReadBudget(*this).take(count, bytes); }

 private:
  std::uint64_t left_ = 0;
};

}  // namespace cifar_mpi::hdf5
