#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>

#include "cifar_mpi/base/bf16.hpp"
#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/comm/collective.hpp"

namespace cifar_mpi::comm {

/// Floats [begin, end) of an array.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const { return end - begin; }
};

/// The form of an array in messages.
///
/// With Wire::fp32 the image is the array itself: it is sent from there and totals arrive there. With
/// Wire::bf16 it is a second array of half the size; the first `fp32_prefix` floats stay fp32 in it. Any
/// range of the array is a contiguous range of the image.
class StagingBuffer {
 public:
  /// Throws Error{device} without memory. `data` must outlive it.
  StagingBuffer(Wire wire, std::span<float> data, std::size_t fp32_prefix);

  std::span<float> data() const { return data_; }
  std::size_t bytes(Range range) const;
  /// The place of that range's message, for sending or for receiving a total.
  std::byte* at(Range range) const;
  /// Its MPI type.
  MPI_Datatype type() const { return wire_ == Wire::fp32 ? MPI_FLOAT : MPI_UINT16_T; }
  /// Its number of elements of `type`. Throws Error{usage} if they are too many for one message.
  int count(Range range) const;

  /// Rounds the array to the image's precision, in both.
  void round(Range range);
  /// array += arrival, a message of that range from another rank, in fp32.
  void add(Range range, const std::byte* arrival);
  /// Both, in one pass.
  void add_and_round(Range range, const std::byte* arrival);
  /// Copies the image, which has received a total, to the array.
  void accept(Range range);

 private:
  std::size_t offset(std::size_t at) const;
  Range fp32_part(Range range) const;
  Range rounded_part(Range range) const;
  bf16* words(std::size_t at) const;

  Wire wire_;
  std::span<float> data_;
  std::size_t fp32_prefix_;
  Buffer image_;  ///< empty with Wire::fp32
};

}  // namespace cifar_mpi::comm
