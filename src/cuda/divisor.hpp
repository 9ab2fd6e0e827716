#pragma once

#include <cstdint>

namespace cifar_mpi::cuda {

/// Division by a number that is known at launch: a product and a shift, where a division takes some twenty
/// instructions (T. Granlund, P. L. Montgomery, "Division by invariant integers using multiplication", PLDI
/// 1994). Runs on the host and on the device.
class Divisor {
 public:
  /// `value` ≥ 1.
  constexpr explicit Divisor(int value = 1) : value_(value) {
    while ((std::uint64_t{1} << (shift_ - 31)) < static_cast<std::uint64_t>(value)) ++shift_;
    multiplier_ =
        static_cast<std::uint32_t>((std::uint64_t{1} << shift_) / static_cast<std::uint64_t>(value) + 1);
  }

  constexpr int value() const { return value_; }
  /// Quotient and remainder of n ≥ 0.
  constexpr int quotient(int n) const {
    return static_cast<int>(std::uint64_t{static_cast<std::uint32_t>(n)} * multiplier_ >> shift_);
  }
  constexpr int remainder(int n) const { return n - quotient(n) * value_; }

 private:
  int value_;
  int shift_ = 31;
  std::uint32_t multiplier_ = 0;
};

}  // namespace cifar_mpi::cuda
