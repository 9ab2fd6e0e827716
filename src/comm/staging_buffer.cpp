#include "comm/staging_buffer.hpp"

#include <algorithm>
#include <climits>
#include <cstring>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "comm/add.hpp"
#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {
namespace {

/// array[i] = what remains of it; image[i] = its bits.
void round_floats(float* __restrict array, bf16* __restrict image, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    image[i] = to_bf16(array[i]);
    array[i] = to_float(image[i]);
  }
}

void add_bf16(float* __restrict array, const bf16* __restrict arrival, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) array[i] += to_float(arrival[i]);
}

void add_and_round_floats(float* __restrict array, const bf16* __restrict arrival, bf16* __restrict image,
                          std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    image[i] = to_bf16(array[i] + to_float(arrival[i]));
    array[i] = to_float(image[i]);
  }
}

void widen(float* __restrict array, const bf16* __restrict image, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) array[i] = to_float(image[i]);
}

const float* floats(const std::byte* bytes) { return reinterpret_cast<const float*>(bytes); }

}  // namespace

StagingBuffer::StagingBuffer(Wire wire, std::span<float> data, std::size_t fp32_prefix)
    : wire_(wire),
      data_(data),
      fp32_prefix_(wire == Wire::fp32 ? data.size() : std::min(fp32_prefix, data.size())) {
  if (wire_ != Wire::fp32) image_ = allocate_message_memory(bytes({0, data.size()}));
}

/// Bytes from the start of the image to float `at`.
std::size_t StagingBuffer::offset(std::size_t at) const {
  return at <= fp32_prefix_ ? at * sizeof(float)
                            : fp32_prefix_ * sizeof(float) + (at - fp32_prefix_) * sizeof(bf16);
}

std::size_t StagingBuffer::bytes(Range range) const { return offset(range.end) - offset(range.begin); }

std::byte* StagingBuffer::at(Range range) const {
  std::byte* const begin = wire_ == Wire::fp32 ? reinterpret_cast<std::byte*>(data_.data()) : image_.data();
  return begin + offset(range.begin);
}

int StagingBuffer::count(Range range) const {
  const std::size_t units = bytes(range) / (wire_ == Wire::fp32 ? sizeof(float) : sizeof(bf16));
  if (units > INT_MAX) {
    throw Error(ErrorKind::usage, "a bucket of ", data_.size(),
                " floats is too long for the messages of MPI; use smaller buckets");
  }
  return static_cast<int>(units);
}

Range StagingBuffer::fp32_part(Range range) const {
  return {std::min(range.begin, fp32_prefix_), std::min(range.end, fp32_prefix_)};
}

Range StagingBuffer::rounded_part(Range range) const {
  return {std::max(range.begin, fp32_prefix_), std::max(range.end, fp32_prefix_)};
}

/// The image of float `at`, which is not in the fp32 prefix.
bf16* StagingBuffer::words(std::size_t at) const {
  return reinterpret_cast<bf16*>(image_.data() + offset(at));
}

void StagingBuffer::round(Range range) {
  if (wire_ == Wire::fp32) return;
  const Range fp32 = fp32_part(range);
  const Range rounded = rounded_part(range);
  if (fp32.size() > 0) std::memcpy(at(fp32), data_.data() + fp32.begin, fp32.size() * sizeof(float));
  round_floats(data_.data() + rounded.begin, words(rounded.begin), rounded.size());
}

void StagingBuffer::add(Range range, const std::byte* arrival) {
  const Range fp32 = fp32_part(range);
  const Range rounded = rounded_part(range);
  comm::add(data_.data() + fp32.begin, floats(arrival), fp32.size());
  add_bf16(data_.data() + rounded.begin, reinterpret_cast<const bf16*>(arrival + fp32.size() * sizeof(float)),
           rounded.size());
}

void StagingBuffer::add_and_round(Range range, const std::byte* arrival) {
  const Range fp32 = fp32_part(range);
  const Range rounded = rounded_part(range);
  add(fp32, arrival);
  round(fp32);
  if (rounded.size() == 0) return;
  add_and_round_floats(data_.data() + rounded.begin,
                       reinterpret_cast<const bf16*>(arrival + fp32.size() * sizeof(float)),
                       words(rounded.begin), rounded.size());
}

void StagingBuffer::accept(Range range) {
  if (wire_ == Wire::fp32) return;
  const Range fp32 = fp32_part(range);
  const Range rounded = rounded_part(range);
  if (fp32.size() > 0) std::memcpy(data_.data() + fp32.begin, at(fp32), fp32.size() * sizeof(float));
  widen(data_.data() + rounded.begin, words(rounded.begin), rounded.size());
}

}  // namespace cifar_mpi::comm
