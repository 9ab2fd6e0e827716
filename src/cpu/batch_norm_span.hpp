#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/bf16.hpp"

/// The vectors that the loops of batch normalization compute with.
namespace cifar_mpi::cpu::batch_norm {

/// Passed by reference: by value a vector's ABI depends on the instruction set.
template <int kLanes>
struct Vectors {
  typedef float Float __attribute__((vector_size(kLanes * sizeof(float))));
  typedef std::uint32_t Word __attribute__((vector_size(kLanes * sizeof(float))));
  typedef std::uint16_t Halves __attribute__((vector_size(kLanes * sizeof(std::uint16_t))));
};

/// Neighbouring values of an image: some channels of one pixel, or all channels of a block in kPixels pixels.
///
/// One vector has fp32 values, two have the even and the odd of bf16 values. These are the halves of 32-bit words, so
/// that no value moves to another lane; such moves took a third of the time of these loops. Where a pixel of a block has
/// no more values than a vector, one vector has bf16 values.
template <class Element, int lanes, int pixels,
          int parts = std::is_same_v<Element, float> || lanes == 1 ? 1 : 2>
struct Span {
  using T = Element;
  static constexpr int kLanes = lanes, kPixels = pixels, kParts = parts;
  static constexpr int kValues = kLanes * kParts, kChannels = kValues / kPixels;
  static constexpr std::uint32_t kUpper = 0xFFFF0000u;
  using Float = typename Vectors<kLanes>::Float;
  using Word = typename Vectors<kLanes>::Word;
  using Halves = typename Vectors<kLanes>::Halves;

  Float part[kParts] = {};

  [[gnu::always_inline]] Span() = default;
  /// One value for each channel.
  [[gnu::always_inline]] explicit Span(const float* channels) {
    if constexpr (kParts == 1) {
      std::memcpy(part, channels, sizeof part);
    } else {
      Float low, high;
      std::memcpy(&low, channels, sizeof low);
      std::memcpy(&high, channels + kChannels - kLanes, sizeof high);
      part_pairs(low, high, kAllLanes);
    }
  }
  /// Stores one value for each channel, that of the first pixel.
  [[gnu::always_inline]] void store_channels(float* channels) const {
    if constexpr (kParts == 1) {
      std::memcpy(channels, part, sizeof part);
    } else {
      store_pairs(channels, kAllLanes);
    }
  }
  /// Adds the values of all pixels, and leaves the sum in each of them.
  [[gnu::always_inline]] void sum_pixels() {
    if constexpr (kPixels == 2) add_turned(kAllLanes);
  }

  [[gnu::always_inline]] void multiply_by(const Span& factors) {
    for (int i = 0; i < kParts; ++i) part[i] *= factors.part[i];
  }

  [[gnu::always_inline]] void load(const T* from) {
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(part, from, sizeof part);
    } else if constexpr (kParts == 1) {
      Halves halves;
      std::memcpy(&halves, from, sizeof halves);
      const Word words = __builtin_convertvector(halves, Word) << 16;
      std::memcpy(part, &words, sizeof part);
    } else {
      Word words;
      std::memcpy(&words, from, sizeof words);
      const Word even = words << 16, odd = words & kUpper;
      std::memcpy(&part[0], &even, sizeof even);
      std::memcpy(&part[1], &odd, sizeof odd);
    }
  }

  /// As T has them: to nearest, ties to even; NaN stays NaN.
  [[gnu::always_inline]] void round() {
    if constexpr (!std::is_same_v<T, float>) {
      for (Float& value : part) {
        Word word;
        std::memcpy(&word, &value, sizeof word);
        const Word rounded = word + 0x7FFFu + ((word >> 16) & 1u);
        const Word kept = (value == value ? rounded : word | 0x400000u) & kUpper;
        std::memcpy(&value, &kept, sizeof kept);
      }
    }
  }
  /// Rounded values.
  [[gnu::always_inline]] void store_rounded(T* to) const {
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(to, part, sizeof part);
    } else if constexpr (kParts == 1) {
      Word words;
      std::memcpy(&words, part, sizeof words);
      const Halves halves = __builtin_convertvector(words >> 16, Halves);
      std::memcpy(static_cast<void*>(to), &halves, sizeof halves);
    } else {
      Word even, odd;
      std::memcpy(&even, &part[0], sizeof even);
      std::memcpy(&odd, &part[1], sizeof odd);
      const Word words = even >> 16 | odd;
      std::memcpy(static_cast<void*>(to), &words, sizeof words);
    }
  }
  [[gnu::always_inline]] void store(T* to) {
    round();
    store_rounded(to);
  }

 private:
  static constexpr std::make_integer_sequence<int, kLanes> kAllLanes{};

  template <int... kLane>
  [[gnu::always_inline]] void part_pairs(const Float& low, const Float& high,
                                         std::integer_sequence<int, kLane...>) {
    part[0] = __builtin_shufflevector(low, high, 2 * kLane...);
    part[1] = __builtin_shufflevector(low, high, 2 * kLane + 1 ...);
  }
  template <int... kLane>
  [[gnu::always_inline]] void store_pairs(float* to, std::integer_sequence<int, kLane...>) const {
    const Float low = __builtin_shufflevector(part[0], part[1], kLane % 2 * kLanes + kLane / 2 ...);
    std::memcpy(to, &low, sizeof low);
    if constexpr (kPixels == 1) {
      const Float high =
          __builtin_shufflevector(part[0], part[1], (kLane % 2 * kLanes + kLanes / 2 + kLane / 2)...);
      std::memcpy(to + kLanes, &high, sizeof high);
    }
  }
  template <int... kLane>
  [[gnu::always_inline]] void add_turned(std::integer_sequence<int, kLane...>) {
    for (Float& value : part)
      value += __builtin_shufflevector(value, value, (kLane + kLanes / 2) % kLanes...);
  }
};

}  // namespace cifar_mpi::cpu::batch_norm
