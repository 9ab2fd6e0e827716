#pragma once

#include <cstddef>
#include <vector>

#include "cpu/lattice.hpp"

/// Activations in blocks of channels, as headers of kernels define them; a shape has a batch, pixels and channels.
namespace cifar_mpi::cpu::testing {

template <class Shape>
std::size_t count_of(const Shape& s) {
  return static_cast<std::size_t>(s.batch) * static_cast<std::size_t>(s.pixels) *
         static_cast<std::size_t>(s.channels);
}

/// The place of an element of a dense [batch, pixels, channels] array.
template <class Shape>
std::size_t place(const Shape& s, int block, std::size_t dense) {
  const int c = static_cast<int>(dense) % s.channels, p = static_cast<int>(dense) / s.channels % s.pixels,
            n = static_cast<int>(dense) / s.channels / s.pixels;
  return static_cast<std::size_t>(n * s.channels * s.pixels + c / block * s.pixels * block + p * block +
                                  c % block);
}

template <class Shape>
std::vector<std::byte> in_memory(const Shape& s, int block, engine::Precision precision,
                                 const reference::Array& dense) {
  std::vector<std::byte> bytes(dense.size() * lattice::bytes_per_value(precision));
  for (std::size_t i = 0; i < dense.size(); ++i) {
    const auto value = static_cast<float>(dense[i]);
    if (precision == engine::Precision::bf16) {
      reinterpret_cast<bf16*>(bytes.data())[place(s, block, i)] = to_bf16(value);
    } else {
      reinterpret_cast<float*>(bytes.data())[place(s, block, i)] = value;
    }
  }
  return bytes;
}

template <class Shape>
reference::Array from_memory(const Shape& s, int block, engine::Precision precision,
                             const std::vector<std::byte>& bytes) {
  reference::Array dense(count_of(s));
  for (std::size_t i = 0; i < dense.size(); ++i) {
    const std::size_t at = place(s, block, i);
    dense[i] = precision == engine::Precision::bf16
                   ? to_float(reinterpret_cast<const bf16*>(bytes.data())[at])
                   : reinterpret_cast<const float*>(bytes.data())[at];
  }
  return dense;
}

}  // namespace cifar_mpi::cpu::testing
