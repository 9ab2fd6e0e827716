#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/data/dataset.hpp"

namespace cifar_mpi::data {
namespace {

constexpr int kWaves = 4;              // per channel of a pattern
constexpr int kMaxFrequency = 3;       // periods per image: smooth, and visible in a crop
constexpr float kPatternSpan = 96.0f;  // of 255, for the sum of all waves
constexpr float kNoiseSpan = 160.0f;   // of 255, full width of the triangular noise

/// The use of a random number in this file; the top bits of the index, so that no two uses share numbers.
enum class Use : std::uint64_t { pattern = 0, train = 1, test = 2 };

Random4 draw(std::uint64_t seed, Use use, std::uint64_t index, std::uint32_t sub) {
  return random4(seed, RandomPurpose::synthetic, (static_cast<std::uint64_t>(use) << 60) | index, sub);
}

/// [h, w, c], periodic in both directions so that a shift is a rotation.
std::vector<float> make_pattern(Extent image, std::uint64_t seed, int label) {
  std::vector<float> pattern(static_cast<std::size_t>(image.count()), 0.0f);
  for (int c = 0; c < image.channels; ++c) {
    for (int wave = 0; wave < kWaves; ++wave) {
      const Random4 r = draw(seed, Use::pattern, static_cast<std::uint64_t>(label),
                             static_cast<std::uint32_t>(c * kWaves + wave));
      const auto rows = static_cast<float>(uniform_below(r[0], kMaxFrequency + 1));
      const auto columns = static_cast<float>(uniform_below(r[1], 2 * kMaxFrequency + 1)) - kMaxFrequency;
      const float phase = uniform01(r[2]);
      for (int y = 0; y < image.height; ++y) {
        for (int x = 0; x < image.width; ++x) {
          const float turns = rows * static_cast<float>(y) / static_cast<float>(image.height) +
                              columns * static_cast<float>(x) / static_cast<float>(image.width) + phase;
          pattern[static_cast<std::size_t>((y * image.width + x) * image.channels + c)] +=
              std::cos(2.0f * std::numbers::pi_v<float> * turns) / kWaves;
        }
      }
    }
  }
  return pattern;
}

void paint(Extent image, const std::vector<float>& pattern, std::uint64_t seed, Use use, std::uint64_t index,
           std::uint8_t* out) {
  const Random4 r = draw(seed, use, index, 0);
  const int down = static_cast<int>(uniform_below(r[0], static_cast<std::uint32_t>(image.height / 8 + 1)));
  const int right = static_cast<int>(uniform_below(r[1], static_cast<std::uint32_t>(image.width / 8 + 1)));
  const float scale = kPatternSpan * (0.5f + 0.5f * uniform01(r[2]));
  const float base = 96.0f + 64.0f * uniform01(r[3]);
  const std::size_t row_values = static_cast<std::size_t>(image.width * image.channels);
  Random4 noise{};
  std::size_t at = 0;
  for (int y = 0; y < image.height; ++y) {
    const float* row = pattern.data() + static_cast<std::size_t>((y + down) % image.height) * row_values;
    std::size_t from = static_cast<std::size_t>(right * image.channels);
    for (std::size_t x = 0; x < row_values; ++x, ++at) {
      if (at % 4 == 0) noise = draw(seed, use, index, static_cast<std::uint32_t>(1 + at / 4));
      const std::uint32_t bits = noise[at % 4];
      const float triangle = static_cast<float>((bits >> 16) + (bits & 0xFFFFu)) * 0x1.0p-17f - 0.5f;
      const float value = base + scale * row[from] + kNoiseSpan * triangle;
      out[at] = static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f));
      if (++from == row_values) from = 0;
    }
  }
}

Samples paint_all(Extent image, const std::vector<std::vector<float>>& patterns, std::uint64_t count,
                  std::uint64_t seed, Use use) {
  const auto image_bytes = static_cast<std::size_t>(image.count());
  Samples samples;
  samples.images.resize(count * image_bytes);
  samples.labels.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t label = i % patterns.size();
    samples.labels[i] = static_cast<std::uint8_t>(label);
    paint(image, patterns[label], seed, use, i, samples.images.data() + i * image_bytes);
  }
  return samples;
}

}  // namespace

void make_synthetic(Extent image, int classes, std::uint64_t count, std::uint64_t seed, Samples& train,
                    Samples& test) {
  std::vector<std::vector<float>> patterns;
  for (int label = 0; label < classes; ++label) patterns.push_back(make_pattern(image, seed, label));
  train = paint_all(image, patterns, count, seed, Use::train);
  test =
      paint_all(image, patterns, std::max(count / 5, static_cast<std::uint64_t>(classes)), seed, Use::test);
}

}  // namespace cifar_mpi::data
