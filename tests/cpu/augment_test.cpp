#include "cpu/augment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cpu/bf16.hpp"
#include "cpu/task_runs.hpp"

namespace cifar_mpi::cpu {
namespace {

using data::Augment;
using data::AugmentSpec;
using engine::Precision;

/// Images of random values, the last of one value only (its deviation is the least one that counts).
struct Images {
  Images(Extent extent, std::uint64_t count)
      : images(count * static_cast<std::size_t>(extent.count())), labels(count) {
    for (std::size_t i = 0; i < images.size(); ++i) {
      images[i] = static_cast<std::uint8_t>(random4(7, RandomPurpose::synthetic, i, 1)[0] >> 24);
    }
    std::fill(images.end() - extent.count(), images.end(), std::uint8_t{200});
    for (std::size_t i = 0; i < count; ++i) labels[i] = static_cast<std::uint8_t>(i % 10);
  }
  engine::DataView view() const { return {images.data(), labels.data(), labels.size()}; }
  std::vector<std::uint8_t> images;
  std::vector<std::uint8_t> labels;
};

/// The output of the task, as floats.
std::vector<float> widened(const std::vector<std::byte>& x, Precision precision) {
  std::vector<float> values(x.size() / (precision == Precision::bf16 ? 2 : 4));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = precision == Precision::bf16 ? to_float(reinterpret_cast<const bf16*>(x.data())[i])
                                             : reinterpret_cast<const float*>(x.data())[i];
  }
  return values;
}

std::size_t bytes_for(const AugmentSpec& spec, int batch, Precision precision) {
  return static_cast<std::size_t>(batch * spec.output().count()) * (precision == Precision::bf16 ? 2 : 4);
}

/// `found` [c, h, w] against the reference [h, w, c]. A value is scale·v + shift in fp32 with v <= 255, scale
/// = f/s and |shift| <= 255·(|1 − f| + 1)/s: three roundings of at most 255·(2f + 2)/s. Random bytes deviate
/// by 74 within a channel, so s > 10·f; an image of one value has the least deviation there is, s =
/// 1/sqrt(n).
void expect_image(const AugmentSpec& spec, const data::AugmentDraw& draw, std::span<const std::uint8_t> image,
                  std::span<const float> found, Precision precision) {
  const Extent out = spec.output();
  std::vector<float> wanted(static_cast<std::size_t>(out.count()));
  data::augment_reference(spec, draw, spec.normalize == data::Normalize::image ? 17.0 : 0.0, image, wanted);
  const auto [least, most] = std::minmax_element(wanted.begin(), wanted.end());
  const double f = draw.contrast;
  const double per_value =
      *most - *least > 1.0f ? 1.0 / (10.0 * f) : std::sqrt(static_cast<double>(spec.crop().count()));
  // A mean of up to 2·in/out + 1 values along each side rounds each weight, product and sum.
  const double taps = spec.downsamples() ? 2.0 * (2.0 * spec.crop_height / spec.image_size + 2.0) : 0.0;
  const double fp32 = (3.0 + taps) * testing::kFp32Unit * 255.0 * (2.0 * f + 2.0) * per_value;
  const int pixels = out.height * out.width;
  for (int i = 0; i < out.count(); ++i) {
    const double value = wanted[static_cast<std::size_t>(i)];
    const double tolerance =
        fp32 + (precision == Precision::bf16 ? testing::kBf16Unit * std::abs(value) : 0.0);
    const auto at = static_cast<std::size_t>(i % out.channels * pixels + i / out.channels);
    ASSERT_NEAR(found[at], value, tolerance) << "at " << i;
  }
}

struct TrainCase {
  AugmentSpec spec;
  Precision precision = Precision::fp32;
};

std::vector<TrainCase> train_cases() {
  std::vector<TrainCase> cases;
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (const Augment kind : {Augment::tutorial, Augment::none}) {
      cases.push_back({{kind, {32, 32, 3}, 24, 24}, precision});
      cases.push_back({{kind, {9, 7, 1}, 8, 5}, precision});
      cases.push_back({{kind, {70, 100, 4}, 60, 90}, precision});  // rows longer than are summed at once
    }
    cases.push_back({{Augment::tutorial, {6, 6, 2}, 6, 6}, precision});  // nothing to spare
    for (const data::Fill fill : {data::Fill::zeros, data::Fill::reflect}) {
      AugmentSpec spec{Augment::crop, {32, 32, 3}, 32, 32};
      spec.fill = fill;
      spec.cutout = 9;
      cases.push_back({spec, precision});
      for (const int size : {24, 13, 32}) {
        spec.image_size = size;
        cases.push_back({spec, precision});
      }
      spec.image_size = 0;
      spec.source = {7, 9, 2};
      spec.crop_height = 6;
      spec.crop_width = 9;
      spec.pad = 6;
      spec.flip = data::Flip::alternate;
      cases.push_back({spec, precision});
      spec.normalize = data::Normalize::dataset;
      for (int c = 0; c < 2; ++c) {
        spec.mean[c] = 100.0f + static_cast<float>(c);
        spec.deviation[c] = 60.0f + static_cast<float>(c);
      }
      cases.push_back({spec, precision});
      spec.brightness = 0.7f;
      spec.contrast = 0.5f;
      cases.push_back({spec, precision});
      spec.crop_width = 6;
      spec.pad = 5;
      spec.image_size = 4;
      cases.push_back({spec, precision});
    }
    AugmentSpec spec{Augment::tutorial, {32, 32, 3}, 24, 24};
    spec.image_size = 17;
    cases.push_back({spec, precision});
  }
  return cases;
}

TEST(TrainInput, EqualsTheReferenceForTheSamplesOfTheStep) {
  constexpr int kBatch = 13;
  for (const TrainCase& c : train_cases()) {
    SCOPED_TRACE(to_string(c.spec.output()));
    const Images images(c.spec.source, 10);
    std::uint64_t step = 3;
    engine::TrainBinding binding;
    binding.data = images.view();
    binding.order = data::SampleOrder(data::Shuffle::shard, 5, 20, 1, 2, kBatch);  // holds samples 10 to 19
    binding.augment = c.spec;
    binding.seed = 99;
    binding.step = &step;
    std::vector<std::byte> x(bytes_for(c.spec, kBatch, c.precision));
    std::vector<std::uint8_t> labels(kBatch);
    testing::run_audited(plan_train_input(binding, kBatch, c.precision, x.data(), labels.data()),
                         {testing::region(x), testing::region(labels), engine::bytes_of(&step, 1)});
    const std::vector<float> values = widened(x, c.precision);
    const auto size = static_cast<std::size_t>(c.spec.output().count());
    const auto source = static_cast<std::size_t>(c.spec.source.count());
    for (std::size_t i = 0; i < kBatch; ++i) {
      const data::SampleRef ref = binding.order.at(step, i);
      EXPECT_EQ(labels[i], images.labels[ref.local]);
      expect_image(c.spec, draw_augment(c.spec, 99, ref.epoch, ref.id),
                   std::span(images.images).subspan(ref.local * source, source),
                   std::span(values).subspan(i * size, size), c.precision);
    }
  }
}

TEST(TrainInput, FollowsTheStepCounterAndIgnoresTheThreads) {
  const AugmentSpec spec{Augment::tutorial, {32, 32, 3}, 24, 24};
  const Images images(spec.source, 50);
  std::uint64_t step = 0;
  engine::TrainBinding binding;
  binding.data = images.view();
  binding.order = data::SampleOrder(data::Shuffle::global, 5, 50, 0, 1, 8);
  binding.augment = spec;
  binding.step = &step;
  std::vector<std::byte> x(bytes_for(spec, 8, Precision::fp32)), first, second;
  std::vector<std::uint8_t> labels(8);
  const engine::Task task = plan_train_input(binding, 8, Precision::fp32, x.data(), labels.data());
  for (const int threads : {1, 3}) {
    const testing::Threads with(threads);
    step = 0;
    testing::run(task);
    if (first.empty()) first = x;
    EXPECT_EQ(x, first);
    step = 1;
    testing::run(task);
    if (second.empty()) second = x;
    EXPECT_EQ(x, second);
  }
  EXPECT_NE(first, second);
}

/// Batches of images as evaluation reads them, one after another.
struct Evaluation {
  Evaluation(const AugmentSpec& spec, const Images& images, int batch, Precision of)
      : precision(of), x(bytes_for(spec, batch, of)), labels(static_cast<std::size_t>(batch)) {
    engine::EvaluateBinding binding;
    binding.data = images.view();
    binding.augment = spec;
    binding.cursor = &cursor;
    task = plan_evaluate_input(binding, batch, of, x.data(), labels.data());
  }
  std::vector<float> next() {
    testing::run_audited(task, {testing::region(x), testing::region(labels), engine::bytes_of(&cursor, 1)});
    return widened(x, precision);
  }

  Precision precision;
  std::uint64_t cursor = 0;
  std::vector<std::byte> x;
  std::vector<std::uint8_t> labels;
  engine::Task task;
};

TEST(EvaluateInput, WalksThroughTheDataAndPadsItsEnd) {
  constexpr int kBatch = 4;
  const AugmentSpec spec{Augment::none, {32, 32, 3}, 24, 24};
  const Images images(spec.source, 6);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Evaluation evaluation(spec, images, kBatch, precision);
    for (std::uint64_t begin : {0u, 4u, 8u}) {
      const std::vector<float> values = evaluation.next();
      EXPECT_EQ(evaluation.cursor, begin + kBatch);
      for (std::size_t i = 0; i < kBatch; ++i) {
        const std::span<const float> found = std::span(values).subspan(i * 1728, 1728);
        if (begin + i < 6) {
          EXPECT_EQ(evaluation.labels[i], images.labels[begin + i]);
          expect_image(spec, {4, 4, false, 1.0f}, std::span(images.images).subspan((begin + i) * 3072, 3072),
                       found, precision);
        } else {
          EXPECT_EQ(evaluation.labels[i], 255);
          EXPECT_TRUE(std::all_of(found.begin(), found.end(), [](float v) { return v == 0.0f; }));
        }
      }
    }
  }
}

TEST(EvaluateInput, ShowsMovedAndMirroredViews) {
  constexpr int kBatch = 3;
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (AugmentSpec spec :
         {AugmentSpec{Augment::none, {32, 32, 3}, 32, 32}, AugmentSpec{Augment::none, {9, 7, 1}, 8, 5}}) {
      const Images images(spec.source, kBatch);
      for (const int shift : {-1, 0, 1}) {
        for (const bool mirror : {false, true}) {
          spec.shift = shift;
          spec.mirror = mirror;
          spec.fill = data::Fill::reflect;
          const std::vector<float> values = Evaluation(spec, images, kBatch, precision).next();
          const auto size = static_cast<std::size_t>(spec.output().count());
          const auto source = static_cast<std::size_t>(spec.source.count());
          const int top = (spec.source.height - spec.crop_height) / 2,
                    left = (spec.source.width - spec.crop_width) / 2;
          for (std::size_t i = 0; i < kBatch; ++i) {
            expect_image(spec, {top + shift, left + shift, mirror, 1.0f},
                         std::span(images.images).subspan(i * source, source),
                         std::span(values).subspan(i * size, size), precision);
          }
        }
      }
    }
  }
}

TEST(TrainInput, RefusesACropThatDoesNotFit) {
  engine::TrainBinding binding;
  for (const AugmentSpec& spec :
       {AugmentSpec{Augment::none, {20, 32, 3}, 24, 24}, AugmentSpec{Augment::none, {32, 32, 5}, 24, 24},
        AugmentSpec{Augment::none, {300, 300, 1}, 300, 300}}) {
    binding.augment = spec;
    EXPECT_THROW(plan_train_input(binding, 1, Precision::fp32, nullptr, nullptr), Error)
        << to_string(spec.source);
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
