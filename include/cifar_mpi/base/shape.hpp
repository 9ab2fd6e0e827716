#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace cifar_mpi {

/// The extents of a tensor of up to four dimensions, outermost first.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) {
    for (const std::int64_t d : dims) dims_[static_cast<std::size_t>(rank_++)] = d;
  }

  /// Adds an innermost dimension; at most four.
  void append(std::int64_t extent) { dims_[static_cast<std::size_t>(rank_++)] = extent; }

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  const std::int64_t* begin() const { return dims_.data(); }
  const std::int64_t* end() const { return dims_.data() + rank_; }
  /// Number of elements; 1 for rank 0.
  std::int64_t count() const {
    std::int64_t n = 1;
    for (const std::int64_t d : *this) n *= d;
    return n;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, 4> dims_{};
  int rank_ = 0;
};

/// Height, width and channels of one image or activation; a vector of n values is {1, 1, n}.
struct Extent {
  int height = 0;
  int width = 0;
  int channels = 0;
  constexpr int count() const { return height * width * channels; }
  bool operator==(const Extent&) const = default;
};

/// "32x32x3"
std::string to_string(const Extent& extent);

/// "[5, 5, 3, 64]"
std::string to_string(const Shape& shape);

}  // namespace cifar_mpi
