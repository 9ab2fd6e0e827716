#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>

#include "cpu/bf16.hpp"
#include "cpu/fft/conv_fft.hpp"
#include "cpu/fft/transforms.hpp"
#include "cpu/task_runs.hpp"

/// The transforms of every available vector set against sums in double precision.
namespace cifar_mpi::cpu::fft {
namespace {

using Complex = std::complex<double>;
using engine::Precision;
using testing::kFp32Unit;

/// Relative, of a transform of N² values: at most 2·log2(N) halvings of about 3 roundings each, and twice the sum of an odd
/// length, 7 at most (Higham, Accuracy and Stability of Numerical Algorithms, 24.1; errors here are of random sign).
double tolerance(int length) { return kFp32Unit * (6.0 * std::log2(length) + 2.0 * 7.0); }

/// ky and kx of a slot.
std::pair<int, int> frequency_of(int slot, int length) {
  const int half = length / 2 + 1;
  if (slot < 2 * half) return {slot % half, slot / half * (length / 2)};
  return {(slot - 2 * half) % length, (slot - 2 * half) / length + 1};
}

/// Σ values[y·columns + x]·e^(∓2πi(ky·y + kx·x)/N), y and x from the first row and column on.
Complex sum_of(const Placement& at, int length, std::pair<int, int> frequency,
               const std::vector<double>& values) {
  Complex sum;
  for (int y = 0; y < at.rows; ++y) {
    for (int x = 0; x < at.columns; ++x) {
      const int turns = frequency.first * (at.first_row + y) + frequency.second * (at.first_column + x);
      sum += values[static_cast<std::size_t>(y * at.columns + x)] *
             std::polar(1.0, -2.0 * std::numbers::pi * (turns % length) / length);
    }
  }
  return sum;
}

/// An image of one vector, [rows, columns, lanes], and its spectrum [slots, 2, lanes].
struct TransformFixture {
  TransformFixture(int n, VectorSet used, Placement where) : length(n), set(used), lanes(lanes_of(used)) {
    place.at = where;
    place.row_step = std::ptrdiff_t{where.columns} * lanes;
    place.column_step = lanes;
    place.slot_step = std::ptrdiff_t{2} * lanes;
    place.im_step = lanes;
    values = testing::noise_of(static_cast<std::size_t>(where.rows * where.columns * lanes), 3);
  }
  std::size_t spectrum_floats() const { return static_cast<std::size_t>(slots_of(length) * 2 * lanes); }
  std::vector<double> lane_of(const std::vector<float>& all, int lane) const {
    std::vector<double> one;
    for (std::size_t i = static_cast<std::size_t>(lane); i < all.size(); i += static_cast<std::size_t>(lanes))
      one.push_back(all[i]);
    return one;
  }
  /// ‖found − wanted‖/‖wanted‖ of the transform of `image` over all slots of a lane.
  double error(const std::vector<float>& spectrum, const std::vector<float>& image, int lane) const {
    double difference = 0.0, size = 0.0;
    const std::vector<double> one = lane_of(image, lane);
    for (int slot = 0; slot < slots_of(length); ++slot) {
      const Complex wanted = sum_of(place.at, length, frequency_of(slot, length), one);
      const auto at = static_cast<std::size_t>(slot * place.slot_step + lane);
      const Complex found(spectrum[at], spectrum[at + static_cast<std::size_t>(lanes)]);
      difference += std::norm(found - wanted);
      size += std::norm(wanted);
    }
    return std::sqrt(difference / size);
  }

  int length;
  VectorSet set;
  int lanes;
  TransformPlace place;
  std::vector<float> values;
};

/// A fixture's image of 3x3 as [lanes, rows, columns].
std::vector<float> lanes_first(const TransformFixture& f) {
  std::vector<float> turned(f.values.size());
  for (int place = 0; place < 9; ++place) {
    for (int lane = 0; lane < f.lanes; ++lane) {
      turned[static_cast<std::size_t>(lane * 9 + place)] =
          f.values[static_cast<std::size_t>(place * f.lanes + lane)];
    }
  }
  return turned;
}

/// Of taps.
Placement around_origin(int kernel, int length) {
  const int before = (kernel - 1) / 2, first = before == 0 ? 0 : length - before;
  return {kernel, kernel, first, first};
}

void for_all(const auto& body) {
  for (const int length : kLengths) {
    for (const VectorSet set : vector_sets_here()) {
      SCOPED_TRACE(::testing::Message() << "length " << length << ", " << name_of(set));
      body(length, set);
    }
  }
}

TEST(FourierTransform, OfAnImageIsTheSum) {
  for_all([](int length, VectorSet set) {
    for (const Placement& at :
         {Placement{length, length}, {length - 1, length - 2}, {1, 3}, {2, 1}, {3, 5, length - 1, 2}}) {
      const TransformFixture f(length, set, at);
      std::vector<float> spectrum(f.spectrum_floats());
      transforms_for(length, set, Precision::fp32)
          .forward(f.place, reinterpret_cast<const std::byte*>(f.values.data()), spectrum.data());
      for (const int lane : {0, f.lanes - 1})
        EXPECT_LE(f.error(spectrum, f.values, lane), tolerance(length)) << at.rows << "x" << at.columns;
    }
  });
}

/// Eight real numbers take 24 operations: 14 of these for four numbers, which are two times two; the inverse
/// takes 30. One row of eight: that row, two real columns and three complex ones, each made of two real ones
/// with 12 operations to combine them; the inverse doubles a real column, and in a complex one the two real
/// frequencies.
TEST(FourierTransform, CountsItsOperations) {
  const TransformFlops flops = transform_flops(8, {1, 8});
  EXPECT_EQ(flops.forward, 24 + 2 * 24 + 3 * (2 * 24 + 12));
  EXPECT_EQ(flops.inverse, 2 * (30 + 8) + 3 * (4 + 12 + 2 * 30) + 30);
  EXPECT_EQ(transform_flops(8, {5, 8, 3, 3}).forward, flops.forward + 4 * 24);
}

TEST(FourierTransform, OfABf16ImageIsThatOfItsValues) {
  for_all([](int length, VectorSet set) {
    TransformFixture f(length, set, {length - 2, length - 3});
    std::vector<bf16> image;
    for (float& value : f.values) {
      image.push_back(to_bf16(value));
      value = to_float(image.back());
    }
    std::vector<float> spectrum(f.spectrum_floats());
    transforms_for(length, set, Precision::bf16)
        .forward(f.place, reinterpret_cast<const std::byte*>(image.data()), spectrum.data());
    EXPECT_LE(f.error(spectrum, f.values, 1), tolerance(length));
  });
}

TEST(FourierTransform, OfTapsStandsAroundTheOrigin) {
  for_all([](int length, VectorSet set) {
    for (const int kernel : {1, 2, 3, 5, 7}) {
      const TransformFixture f(length, set, around_origin(kernel, length));
      std::vector<float> spectrum(f.spectrum_floats());
      transforms_for(length, set, Precision::fp32)
          .forward(f.place, reinterpret_cast<const std::byte*>(f.values.data()), spectrum.data());
      EXPECT_LE(f.error(spectrum, f.values, 2), tolerance(length)) << "kernel " << kernel;
    }
  });
}

TEST(FourierTransform, OfImagesReadsLanesApart) {
  for_all([](int length, VectorSet set) {
    TransformFixture f(length, set, {3, 3});
    const Transforms transforms = transforms_for(length, set, Precision::fp32);
    const auto spectrum_of = [&](const std::vector<float>& image) {
      std::vector<float> spectrum(f.spectrum_floats());
      transforms.forward(f.place, reinterpret_cast<const std::byte*>(image.data()), spectrum.data());
      return spectrum;
    };
    const std::vector<float> together = spectrum_of(f.values);
    f.place.row_step = 3;
    f.place.column_step = 1;
    f.place.lane_step = 9;
    EXPECT_EQ(spectrum_of(lanes_first(f)), together);
  });
}

TEST(FourierTransform, BackGivesTheImageWithItsBiasesAndReLU) {
  for_all([](int length, VectorSet set) {
    const TransformFixture f(length, set, {length - 3, length - 1});
    const Transforms transforms = transforms_for(length, set, Precision::fp32);
    std::vector<float> spectrum(f.spectrum_floats()), back(f.values.size());
    transforms.forward(f.place, reinterpret_cast<const std::byte*>(f.values.data()), spectrum.data());
    const double size = length * length;
    const std::vector<float> biases(static_cast<std::size_t>(f.lanes), 0.25f);
    for (const bool relu : {false, true}) {
      transforms.inverse(f.place, spectrum.data(), {static_cast<float>(0.5 / size), biases.data(), relu},
                         reinterpret_cast<std::byte*>(back.data()));
      double worst = 0.0;
      for (std::size_t i = 0; i < back.size(); ++i) {
        const double wanted = f.values[i] + 0.25;
        worst = std::max(worst, std::abs(back[i] - (relu ? std::max(wanted, 0.0) : wanted)));
      }
      EXPECT_LE(worst, 4.0 * tolerance(length))
          << relu;  // the largest of many, values up to 1.25, forward and inverse
    }
  });
}

TEST(FourierTransform, BackAddsToTheLeadingRowsAndColumns) {
  for_all([](int length, VectorSet set) {
    const TransformFixture f(length, set, {length - 1, 2, length - 1, 3});
    const std::vector<float> spectrum = testing::noise_of(f.spectrum_floats(), 9);
    const Transforms transforms = transforms_for(length, set, Precision::fp32);
    std::vector<float> alone(f.values.size()), sum = f.values;
    transforms.inverse(f.place, spectrum.data(), {}, reinterpret_cast<std::byte*>(alone.data()));
    transforms.inverse(f.place, spectrum.data(), {1.0f, nullptr, false, 2, 1},
                       reinterpret_cast<std::byte*>(sum.data()));
    for (int y = 0; y < f.place.at.rows; ++y) {
      for (int x = 0; x < f.place.at.columns; ++x) {
        for (int lane = 0; lane < f.lanes; ++lane) {
          const auto i = static_cast<std::size_t>((y * f.place.at.columns + x) * f.lanes + lane);
          EXPECT_EQ(sum[i], y < 2 || x < 1 ? alone[i] + f.values[i] : alone[i]) << y << ", " << x;
        }
      }
    }
  });
}

TEST(FourierTransform, BackKeepsWhatIsNotANumberAfterAReLU) {
  for_all([](int length, VectorSet set) {
    const TransformFixture f(length, set, {2, 2});
    const std::vector<float> spectrum(f.spectrum_floats(), std::nanf(""));
    std::vector<float> back(f.values.size());
    transforms_for(length, set, Precision::fp32)
        .inverse(f.place, spectrum.data(), {1.0f, nullptr, true}, reinterpret_cast<std::byte*>(back.data()));
    for (const float value : back) EXPECT_TRUE(std::isnan(value));
  });
}

TEST(FourierTransform, BackToBf16RoundsToNearest) {
  for_all([](int length, VectorSet set) {
    const TransformFixture f(length, set, {length - 2, length - 2});
    std::vector<float> spectrum = testing::noise_of(f.spectrum_floats(), 9), whole(f.values.size());
    std::vector<bf16> half(f.values.size());
    transforms_for(length, set, Precision::fp32)
        .inverse(f.place, spectrum.data(), {}, reinterpret_cast<std::byte*>(whole.data()));
    transforms_for(length, set, Precision::bf16)
        .inverse(f.place, spectrum.data(), {}, reinterpret_cast<std::byte*>(half.data()));
    for (std::size_t i = 0; i < half.size(); ++i) EXPECT_EQ(half[i].bits, to_bf16(whole[i]).bits);
  });
}

TEST(FourierTransform, BackToTapsUndoesTheirTransform) {
  for_all([](int length, VectorSet set) {
    for (const int kernel : {1, 3, 4, 5, 7}) {
      const TransformFixture f(length, set, around_origin(kernel, length));
      const Transforms transforms = transforms_for(length, set, Precision::fp32);
      std::vector<float> spectrum(f.spectrum_floats()), back(f.values.size());
      transforms.forward(f.place, reinterpret_cast<const std::byte*>(f.values.data()), spectrum.data());
      transforms.inverse(f.place, spectrum.data(), {0.5f / static_cast<float>(length * length)},
                         reinterpret_cast<std::byte*>(back.data()));
      for (std::size_t i = 0; i < back.size(); ++i)
        EXPECT_NEAR(back[i], f.values[i], 4.0 * tolerance(length)) << "kernel " << kernel;
    }
  });
}

/// Length and tile.
std::pair<int, int> tiling(const Extent& image, int kernel, Precision precision = Precision::fp32) {
  const Tiling found = tiling_for(image, kernel, precision);
  return {found.length, found.tile};
}

TEST(FftTiling, TakesTheLeastLengthAroundWhichNothingMeets) {
  EXPECT_EQ(tiling({12, 12, 64}, 5), std::pair(14, 12));
  EXPECT_EQ(tiling({24, 24, 3}, 5), std::pair(28, 24));
  EXPECT_EQ(tiling({7, 7, 1}, 3), std::pair(8, 7));
  EXPECT_EQ(tiling({8, 7, 1}, 3), std::pair(10, 8));
  EXPECT_EQ(tiling({15, 15, 1}, 3), std::pair(16, 15));
  EXPECT_EQ(tiling({6, 6, 1}, 4), std::pair(8, 6));
  EXPECT_EQ(tiling({7, 7, 1}, 4), std::pair(10, 7));
  EXPECT_EQ(tiling({1, 1, 1}, 9), std::pair(10, 1));
}

TEST(FftTiling, CutsImagesWhereTilesHaveFewerPlaces) {
  EXPECT_EQ(tiling({16, 16, 64}, 3), std::pair(10, 8));  // 4·10² places instead of 28²
  EXPECT_EQ(tiling({32, 32, 64}, 3),
            std::pair(10, 8));  // 16·10²; of lengths from 14 on four to nine are more
  EXPECT_EQ(tiling({7, 15, 1}, 3), std::pair(10, 8));     // 2·10² instead of 16²
  EXPECT_EQ(tiling({28, 28, 64}, 3), std::pair(16, 14));  // as many as 32², but shorter
  EXPECT_EQ(tiling({31, 31, 64}, 3), std::pair(32, 31));
  EXPECT_EQ(tiling({33, 24, 16}, 4), std::pair(16, 13));
}

TEST(FftTiling, CutsNoImagesInBf16) {
  EXPECT_EQ(tiling({16, 16, 64}, 3, Precision::bf16), std::pair(28, 16));
  EXPECT_EQ(tiling({32, 32, 64}, 3, Precision::bf16), std::pair(0, 0));
}

}  // namespace
}  // namespace cifar_mpi::cpu::fft
