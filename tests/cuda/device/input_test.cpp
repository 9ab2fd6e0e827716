#include <cmath>
#include <span>
#include <tuple>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cuda/augment.hpp"
#include "cuda/conv.hpp"
#include "cuda/device/gpu.hpp"

/// The inputs of layers: distorted images and the windows of convolutions, of shapes that blocks do not
/// divide.
namespace cifar_mpi::cuda::testing {
namespace {

class CudaInput : public GpuTest {};

/// As Im2colShape defines them.
reference::Array patches_of(const Im2colShape& shape, const reference::Array& image) {
  reference::Array patches;
  for (std::int64_t pixel = 0; pixel < shape.rows(); ++pixel) {
    const std::int64_t row = pixel / shape.width, b = row / shape.height;
    for (int k = 0; k < shape.row; ++k) {
      const int tap = k / shape.channels;
      const std::int64_t y = row % shape.height + tap / shape.kernel - shape.before;
      const std::int64_t x = pixel % shape.width + tap % shape.kernel - shape.before;
      const bool inside = k < shape.inner() && y >= 0 && y < shape.height && x >= 0 && x < shape.width;
      const std::int64_t from = ((b * shape.height + y) * shape.width + x) * shape.channels;
      patches.push_back(inside ? image[static_cast<std::size_t>(from + k % shape.channels)] : 0.0);
    }
  }
  return patches;
}

TEST_F(CudaInput, GathersTheWindowsOfImagesOfEveryShape) {
  Bench bench;
  const Im2colShape shapes[] = {
      {5, 23, 24, 3, 5, 2},   // runs longer than a group, bands of 8, 8 and 7 rows
      {2, 40, 9, 1, 3, 1},    // runs shorter than a group
      {1500, 9, 2, 1, 2, 0},  // a window of less than a group, one band
      {2, 3, 2, 83, 5, 2},    // more groups than threads
      {1, 2, 300, 9, 5, 1},   // more than a block can keep
      {3, 7, 5, 16, 3, 1},    // vec8s
      {2, 21, 13, 8, 1, 0},
  };
  for (const ValueType type : kTypes) {
    for (Im2colShape shape : shapes) {
      for (const int more : {0, kIm2colGroup}) {
        shape.row = round_up(shape.inner(), kIm2colGroup) + more;
        const reference::Array image = lattice(static_cast<std::size_t>(shape.rows() * shape.channels), 8);
        const reference::Array wanted = patches_of(shape, image);
        void* const patches = bench.take(wanted.size(), type);
        im2col(bench.stream, shape, type, bench.upload(image, type), patches);
        expect_equal(bench.download(patches, wanted.size(), type), wanted,
                     concat(shape.height, 'x', shape.width, 'x', shape.channels, " row ", shape.row));
        bench.clear();
      }
    }
  }
}

/// The batch that starts at sample `first` of an order, by the reference.
reference::Array distorted(const data::AugmentSpec& spec, const std::vector<std::uint8_t>& images,
                           const data::SampleOrder& order, std::uint64_t seed, std::uint64_t step,
                           int batch) {
  reference::Array all;
  const auto values = static_cast<std::size_t>(spec.source.count());
  for (int i = 0; i < batch; ++i) {
    const data::SampleRef sample = order.at(step, static_cast<std::uint64_t>(i));
    std::vector<float> one(static_cast<std::size_t>(spec.output().count()));
    data::augment_reference(spec, data::draw_augment(spec, seed, sample.epoch, sample.id), 0.0,
                            std::span(images).subspan(sample.local * values, values), one);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

std::vector<data::AugmentSpec> specs() {
  std::vector<data::AugmentSpec> all;
  for (const auto& [source, height, width] :
       {std::tuple{Extent{32, 32, 3}, 24, 24}, std::tuple{Extent{9, 7, 1}, 5, 4},
        std::tuple{Extent{40, 37, 4}, 39, 37}, std::tuple{Extent{3, 300, 2}, 1, 290}}) {
    all.push_back({data::Augment::tutorial, source, height, width});
  }
  for (const data::Fill fill : {data::Fill::zeros, data::Fill::reflect}) {
    data::AugmentSpec moved{data::Augment::crop, {32, 32, 3}, 32, 32};
    moved.fill = fill;
    moved.cutout = 7;
    all.push_back(moved);
    moved.flip = data::Flip::alternate;
    moved.normalize = data::Normalize::dataset;
    for (int c = 0; c < 3; ++c) {
      moved.mean[c] = 110.0f + static_cast<float>(c);
      moved.deviation[c] = 60.0f + static_cast<float>(c);
    }
    all.push_back(moved);
    moved.brightness = 0.7f;
    moved.contrast = 0.5f;
    all.push_back(moved);
    for (const int size : {24, 13}) {
      moved.image_size = size;
      all.push_back(moved);
    }
  }
  return all;
}

TEST_F(CudaInput, DistortsImagesOfEveryShape) {
  Bench bench;
  constexpr std::uint64_t kSeed = 5, kStep = 3, kImages = 20;
  constexpr int kBatch = 6;
  for (const data::AugmentSpec& spec : specs()) {
    const Extent source = spec.source;
    std::vector<std::uint8_t> images(kImages * static_cast<std::size_t>(source.count())), labels(kImages);
    for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(i * i / 7 + i * 37);
    for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::uint8_t>(i);
    const data::SampleOrder order(data::Shuffle::shard, kSeed, kImages, 0, 1, kBatch);
    const reference::Array wanted = distorted(spec, images, order, kSeed, kStep, kBatch);
    for (const ValueType type : kTypes) {
      TrainInput input;
      input.place = {spec, bench.upload(images), bench.upload(labels), kImages, kBatch, type};
      input.place.x = bench.take(wanted.size(), type);
      input.place.batch_labels = bench.take<std::uint8_t>(kBatch);
      input.order = order;
      input.seed = kSeed;
      input.step = bench.upload(std::vector<std::uint64_t>{kStep});
      train_input(bench.stream, input);
      // Values of up to 255 times a scale, and a shift of that size; then one rounding of the type. Its root mean square is
      // greatest for values just above a power of two: errors uniform in ±2 units.
      const double tolerance = 0x1.0p-20 + 2.0 / std::sqrt(3.0) * unit_of(type);
      EXPECT_LE(relative_distance(bench.download(input.place.x, wanted.size(), type), wanted), tolerance)
          << concat(source.height, 'x', source.width, 'x', source.channels);
      const auto found = bench.download(input.place.batch_labels, kBatch);
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], order.at(kStep, i).local);
    }
    bench.clear();
  }
}

TEST_F(CudaInput, ShowsMovedAndMirroredViews) {
  Bench bench;
  constexpr std::uint64_t kImages = 5;
  constexpr int kBatch = 3;
  for (const auto& [source, height, width] :
       {std::tuple{Extent{32, 32, 3}, 32, 32}, std::tuple{Extent{9, 7, 1}, 8, 5}}) {
    const auto values = static_cast<std::size_t>(source.count());
    std::vector<std::uint8_t> images(kImages * values), labels(kImages);
    for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(i * i / 7 + i * 37);
    for (const int shift : {-1, 0, 1}) {
      for (const bool mirror : {false, true}) {
        data::AugmentSpec spec{data::Augment::none, source, height, width};
        spec.fill = data::Fill::reflect;
        spec.shift = shift;
        spec.mirror = mirror;
        const data::AugmentDraw draw{(source.height - height) / 2 + shift, (source.width - width) / 2 + shift,
                                     mirror, 1.0f};
        reference::Array wanted;
        for (std::size_t i = 2; i < kImages; ++i) {
          std::vector<float> one(static_cast<std::size_t>(spec.output().count()));
          data::augment_reference(spec, draw, 0.0, std::span(images).subspan(i * values, values), one);
          wanted.insert(wanted.end(), one.begin(), one.end());
        }
        for (const ValueType type : kTypes) {
          InputPlace place{spec, bench.upload(images), bench.upload(labels), kImages, kBatch, type};
          place.x = bench.take(wanted.size(), type);
          place.batch_labels = bench.take<std::uint8_t>(kBatch);
          evaluate_input(bench.stream, place, bench.upload(std::vector<std::uint64_t>{2}));
          EXPECT_LE(relative_distance(bench.download(place.x, wanted.size(), type), wanted),
                    0x1.0p-20 + unit_of(type))
              << concat(source.height, 'x', source.width, " moved by ", shift, mirror ? ", mirrored" : "");
        }
        bench.clear();
      }
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
