#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/config/options.hpp"
#include "config/made_config.hpp"
#include "support/errors.hpp"

/// Sizes of images, batches and runs.
namespace cifar_mpi::config {
namespace {

TEST(ImageSizes, ReadAndPrintTheSameText) {
  const auto row =
      std::find_if(options().begin(), options().end(), [](auto& o) { return o.name == "--image-size"; });
  ASSERT_NE(row, options().end());
  TrainConfig config;
  EXPECT_EQ(row->value.text(config), "full");
  for (const char* const good : {"24x3,28x3,32", "32", "30x0.5,20x2,30x1.25,8", "full"}) {
    EXPECT_EQ(row->value.read(config, good), "") << good;
    EXPECT_EQ(row->value.text(config), good);
  }
  for (const char* const bad :
       {"", "24x3", "24,32", "24x3,", ",32", "24x0,32", "24x-1,32", "24xinf,32", "24x,32", "x3,32", "0", "-4",
        "2.5", "24x3 ,32", "24x3x2,32", "24x1,24x2,32", "24x3,24"}) {
    EXPECT_TRUE(row->value.read(config, bad).starts_with("must be full, or ")) << bad;
    EXPECT_EQ(row->value.text(config), "full") << bad;
  }
}

TEST(ResolveSizes, BeginsImageSizesWithTheFirstStepOfTheirEpochs) {
  TrainConfig config = changed([](auto& c) {
    c.batch_size = 30, c.steps = 10;  // 10/3 steps per epoch
    c.augment = data::Augment::crop;
    c.image_sizes = {{24, 1.0}, {16, 1.0}, {32}};
  });
  const auto stages = [&] {
    std::vector<std::pair<std::uint64_t, int>> all;
    for (const ImageStage& stage : resolve_sizes(config, 1, dataset_of(100)).image_stages)
      all.emplace_back(stage.from, stage.pixels);
    return all;
  };
  using Stages = std::vector<std::pair<std::uint64_t, int>>;
  EXPECT_EQ(stages(), (Stages{{0, 24}, {4, 16}, {7, 32}}));
  config.steps = 7;
  EXPECT_EQ(stages(), (Stages{{0, 24}, {4, 16}}));  // the run ends before
  config.image_sizes = {};
  EXPECT_EQ(stages(), Stages{});
  const auto refuse = [&](std::vector<ImageSize> sizes, const std::string& text) {
    config.image_sizes = std::move(sizes);
    expect_error(ErrorKind::usage, {text}, [&] { stages(); });
  };
  refuse({{33}}, "--image-size 33 does not fit the network's input of 32x32");
  refuse({{16, 1.0}, {40}}, "give smaller sizes, or --image-size full");
  refuse(
      {{24, 0.4}, {16, 0.1}, {32}},
      "--image-size 24x0.4,16x0.1,32 has no step with images of 16 pixels, because no step begins in these");
  config.augment = data::Augment::tutorial;
  refuse({{25}}, "the network's input of 24x24");
}

TEST(ResolveSizes, CountsBatchesAndSteps) {
  TrainConfig config = changed([](auto& c) { c.batch_size = 10, c.epochs = 2.5; });
  Sizes sizes = resolve_sizes(config, 3, dataset_of(100));
  EXPECT_EQ(sizes.batch, 10);
  EXPECT_EQ(sizes.global_batch, 30u);
  EXPECT_EQ(sizes.parts, 1);
  EXPECT_DOUBLE_EQ(sizes.steps_per_epoch, 100.0 / 30.0);
  EXPECT_EQ(sizes.total_steps, 8u);  // 2.5 · 3.33 = 8.33
  config.steps = 7;
  config.global_batch = 36;
  sizes = resolve_sizes(config, 3, dataset_of(100));
  EXPECT_EQ(sizes.batch, 12);
  EXPECT_EQ(sizes.global_batch, 36u);
  EXPECT_EQ(sizes.total_steps, 7u);
  config.reproducible = true;
  config.global_batch = 32;
  EXPECT_EQ(resolve_sizes(config, 2, dataset_of(100)).parts, 4);
  EXPECT_EQ(resolve_sizes(config, 8, dataset_of(100)).parts, 1);
  config = changed([](auto& c) { c.batch_size = 5, c.accumulate = 3; });
  sizes = resolve_sizes(config, 2, dataset_of(100));
  EXPECT_EQ(sizes.batch, 15);
  EXPECT_EQ(sizes.parts, 3);
  EXPECT_EQ(sizes.global_batch, 30u);
  config.global_batch = 36;
  EXPECT_EQ(resolve_sizes(config, 2, dataset_of(100)).batch, 18);
  config = changed([](auto& c) { c.batch_size = 224, c.epochs = 7.0; });
  EXPECT_EQ(resolve_sizes(config, 1, dataset_of(60000)).total_steps,
            1875u);  // 60000/224, rounded, times 7 is less
}

TEST(ResolveSizes, SaysWhatDoesNotFit) {
  const auto refuse = [](ErrorKind kind, const std::vector<std::string>& parts, int ranks,
                         std::uint64_t samples, const Change& change) {
    expect_error(kind, parts, [&] { resolve_sizes(changed(change), ranks, dataset_of(samples)); });
  };
  refuse(ErrorKind::usage, {"--global-batch 32 cannot be divided by 3 ranks"}, 3, 1000,
         [](auto& c) { c.global_batch = 32; });
  refuse(ErrorKind::usage, {"each of 2 ranks 16 samples", "--accumulate 3 batches"}, 2, 1000,
         [](auto& c) { c.global_batch = 32, c.accumulate = 3; });
  refuse(ErrorKind::usage, {"--global-batch 4194304", "per rank"}, 2, 1000,
         [](auto& c) { c.global_batch = 1 << 22; });
  refuse(ErrorKind::data, {"some/data.h5 has 3 training samples", "4 ranks"}, 4, 3,
         [](auto& c) { c.batch_size = 1; });
  refuse(ErrorKind::data, {"100 training samples", "global batch of 256", "lower --batch-size"}, 2, 100,
         [](auto&) {});
  refuse(ErrorKind::data, {"global batch of 200", "lower --global-batch"}, 2, 100,
         [](auto& c) { c.global_batch = 200; });
  refuse(ErrorKind::usage, {"--epochs 0.01", "shorter than one step"}, 1, 1000,
         [](auto& c) { c.epochs = 0.01; });
  EXPECT_NO_THROW(resolve_sizes(changed([](auto& c) { c.batch_size = 50; }), 2, dataset_of(100)));
  const auto in_shards = [](int batch) {
    return [batch](auto& c) { c.reproducible = true, c.batch_size = batch; };
  };
  refuse(ErrorKind::usage, {"power of two", "--micro-shards 8, not 3"}, 3, 1000, in_shards(8));
  refuse(ErrorKind::usage, {"power of two", "--micro-shards 8, not 16"}, 16, 1000, in_shards(8));
  refuse(ErrorKind::usage, {"global batch of 12 into 8 equal micro-shards"}, 2, 1000, in_shards(6));
}

}  // namespace
}  // namespace cifar_mpi::config
