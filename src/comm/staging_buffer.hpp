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

/// An array as its messages see it.
///
/// With Wire::fp32 the image is the array itself: it is sent from there and totals arrive there. With
/// Wire::bf16 it is a second array of half the size; the first `fp32_prefix` floats stay fp32 in it. Any range of
/// the array is a contiguous range of the image, so that it can be cut in any way.
class StagingBuffer {
 public:
  /// Throws Error{device} without memory. `data` must outlive it.
  StagingBuffer(Wire wire, std::span<float> data, std::size_t fp32_prefix);

  std::span<float> data() const { return data_; }
  std::size_t bytes(Range range) const;
  /// Where the message of that range lies: to be sent from, or for a total to arrive in.
  std::byte* at(Range range) const;
  /// What MPI is told about it.
  MPI_Datatype type() const { return wire_ == Wire::fp32 ? MPI_FLOAT : MPI_UINT16_T; }
  /// Of `type`. Throws Error{usage} when they are too many for one message.
  int count(Range range) const;

  /// Array and image become the array, rounded to what the image can hold.
  void round(Range range);
  /// array += arrival, a message of that range from another rank, in fp32.
  void add(Range range, const std::byte* arrival);
  /// Both, in one pass.
  void add_and_round(Range range, const std::byte* arrival);
  /// The array becomes the image, in which a total has arrived.
  void accept(Range range);

 private:
  std::size_t offset(std::size_t at) const;
  Range fp32_part(Range range) const;
  Range rounded_part(Range range) const;
  bf16* words(std::size_t at) const;

  Wire wire_;
  std::span<float> data_;
  std::size_t fp32_prefix_;
  Buffer image_;  ///< nothing with Wire::fp32
};

}  // namespace cifar_mpi::comm
