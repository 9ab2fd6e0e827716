#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/bf16.hpp"
#include "cpu/conv.hpp"
#include "cpu/fft/conv_fft.hpp"
#include "cpu/lattice.hpp"
#include "cpu/network_run.hpp"
#include "cpu/task_runs.hpp"

/// The passes of a convolution by FFT or Winograd's filtering on drawn operands.
namespace cifar_mpi::cpu::fft {

using engine::Precision;
using reference::Array;

struct Case {
  int batch;
  Extent in;
  int out_channels;
  int kernel;
  bool relu = false;
  int pieces = 1;
  bool winograd = false;
};

inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.batch << "x" << to_string(c.in) << " to " << c.out_channels << ", kernel " << c.kernel
       << (c.relu ? ", relu" : "") << ", " << c.pieces << " pieces" << (c.winograd ? ", Winograd" : "");
}

/// Relative to the length of the result: relative_tolerance for a sum of `terms`, plus three transforms, each
/// of log2(N) halvings in two directions and odd sums of 7, with some roundings of random sign each. (Sums
/// over up to four tiles have fewer, because their lengths have shorter odd sums.)
inline double tolerance(int length, double terms) {
  return 2.0 * testing::kFp32Unit * (std::sqrt(terms) + 3.0 * (std::log2(length) + 7.0));
}

/// The bound of direct sums of nine taps for each of the terms, and one rounding for each of three transforms: that
/// Winograd's filtering errs more than direct sums (winograd.hpp) is less than what the bound leaves.
inline double winograd_tolerance(double terms) {
  return 2.0 * testing::kFp32Unit * (std::sqrt(9.0 * terms) + 3.0);
}

/// All operands of one convolution, and the results of the passes in `block`s of channels (0: NHWC).
class Fixture {
 public:
  Fixture(const Case& c, VectorSet set, Precision precision, int block = 0)
      : precision_(precision), shape{c.batch, c.in, c.out_channels, c.kernel} {
    const Extent out{c.in.height, c.in.width, c.out_channels};
    const std::size_t value_bytes = lattice::bytes_per_value(precision);
    conv.set = set;
    conv.batch = c.batch;
    conv.samples = c.batch / c.pieces;
    conv.kernel = c.kernel;
    conv.src = {c.in, block == 0 ? c.in.channels : block, value_bytes};
    conv.dst = {out, block == 0 ? c.out_channels : block, value_bytes};
    conv.relu = c.relu;
    conv.winograd = c.winograd;
    conv = with_kernels(conv, precision);
    const auto images = static_cast<std::size_t>(c.batch);
    x = lattice::rounded(test::noise_array(images * static_cast<std::size_t>(c.in.count()), 1), precision);
    grad_y =
        lattice::rounded(test::noise_array(images * static_cast<std::size_t>(out.count()), 2), precision);
    weights = test::noise_array(conv.weight_floats(), 3);
    biases = test::noise_array(static_cast<std::size_t>(c.out_channels), 4);
  }

  struct Passes {
    Array y, grad_x, grad_weights, grad_biases;
  };

  Passes run() {
    engine::Lane lane;
    return run(lane, true);
  }

  /// `trains`: computes the gradients of the parameters, from spectra that are kept unless `conv` recomputes.
  Passes run(engine::Lane& lane, bool trains) {
    const std::vector<float> taps(weights.begin(), weights.end()), shifts(biases.begin(), biases.end());
    std::vector<std::byte> src = laid_out(conv.src, x), grad_dst = laid_out(conv.dst, grad_y);
    constexpr std::byte kNan{0xFF};  // in all bytes: initial values must be neither read nor kept
    std::vector<std::byte> dst(grad_dst.size(), kNan), grad_src(src.size(), kNan);
    std::vector<float> grad_weights(taps.size()), grad_biases(shifts.size());
    ConvFftMemory memory;
    memory.src = src.data();
    memory.dst = dst.data();
    memory.grad_dst = grad_dst.data();
    memory.grad_src = grad_src.data();
    memory.weights = take(conv.weight_spectra(), 1);
    memory.transposed_weights = take(conv.transposed_spectra(), 1);
    const bool keeps = trains && !conv.recomputes;
    const int kept = keeps ? std::max(conv.pieces(), conv.concurrent) : conv.concurrent;
    memory.src_spectra = take(conv.src_spectra(), kept);
    memory.grad_dst_spectra = take(conv.dst_spectra(), kept);
    memory.keeps_src_spectra = keeps && !conv.winograd;
    memory.keeps_grad_dst_spectra = keeps;
    memory.product = take({conv.slots(), conv.samples * conv.tiles(),
                           std::max(shape.in.channels, shape.out_channels), conv.parts(), conv.lanes()},
                          conv.concurrent);
    memory.grad_weights_spectra = take(conv.gradient_spectra(), 1);
    testing::run(plan_fft_weights("weights", conv, taps.data(), memory));
    plan_fft_forward("forward", conv, memory, shifts.data()).start(lane);
    if (trains && conv.recomputes) {
      plan_fft_gradients("gradients", conv, memory, grad_weights.data()).start(lane);
    } else {
      plan_fft_data_gradient("data", conv, memory).start(lane);
    }
    if (keeps)
      plan_fft_weight_gradient("weights", conv, memory, grad_weights.data(),
                               conv.winograd ? nullptr : grad_biases.data())
          .start(lane);
    return {read(conv.dst, dst),
            read(conv.src, grad_src),
            {grad_weights.begin(), grad_weights.end()},
            {grad_biases.begin(), grad_biases.end()}};
  }

  Array wanted_y() const {
    Array y = reference::conv_forward(shape, x, weights, biases);
    return conv.relu ? reference::relu_forward(y) : y;
  }

 private:
  float* take(const SpectraShape& spectra, int pieces) {
    // Only memory that was written may be read.
    memory_.push_back(allocate_host(spectra.floats() * static_cast<std::size_t>(pieces) * sizeof(float)));
    std::ranges::fill(memory_.back().span<float>(), std::nanf(""));
    return memory_.back().as<float>();
  }

  void for_each_value(const ImageShape& image, const auto& body) const {
    std::size_t i = 0;
    for (int n = 0; n < shape.batch; ++n) {
      for (int pixel = 0; pixel < image.extent.height * image.extent.width; ++pixel) {
        for (int c = 0; c < image.extent.channels; ++c) {
          body(image.offset(n, c) + static_cast<std::size_t>(pixel) * static_cast<std::size_t>(image.block) *
                                        image.value_bytes,
               i++);
        }
      }
    }
  }
  std::vector<std::byte> laid_out(const ImageShape& image, const Array& values) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(shape.batch) * image.image_bytes());
    for_each_value(image, [&](std::size_t at, std::size_t i) {
      const auto value = static_cast<float>(values[i]);
      const bf16 half = to_bf16(value);
      std::memcpy(&bytes[at], precision_ == Precision::bf16 ? static_cast<const void*>(&half) : &value,
                  image.value_bytes);
    });
    return bytes;
  }
  Array read(const ImageShape& image, const std::vector<std::byte>& bytes) const {
    Array values(static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(image.extent.count()));
    std::vector<std::byte> padding = bytes;
    for_each_value(image, [&](std::size_t at, std::size_t i) {
      std::fill_n(&padding[at], image.value_bytes, std::byte{0});
      float value = 0.0f;
      bf16 half;
      std::memcpy(precision_ == Precision::bf16 ? static_cast<void*>(&half) : &value, &bytes[at],
                  image.value_bytes);
      values[i] = precision_ == Precision::bf16 ? to_float(half) : value;
    });
    EXPECT_EQ(padding, std::vector<std::byte>(bytes.size())) << "of the last block";
    return values;
  }

  Precision precision_;
  std::vector<Buffer> memory_;

 public:
  reference::ConvShape shape;
  ConvFft conv;
  Array x, weights, biases, grad_y;
};

}  // namespace cifar_mpi::cpu::fft
