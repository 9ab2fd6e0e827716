#include "bench/benchmark_parts.hpp"

#include <algorithm>

namespace cifar_mpi::bench {
namespace {

/// Of each rank.
std::uint64_t images_of(const config::TrainConfig& config) {
  return static_cast<std::uint64_t>(std::max(4096, 8 * config.batch_size));
}

}  // namespace

config::TrainConfig benchmark_config(const std::string& model) {
  config::TrainConfig train;
  train.data = "generated images";
  train.model = model;
  if (model != config::TrainConfig{}.model) {
    train.augment = data::Augment::crop;
    train.normalize = data::Normalize::dataset;
    train.optimizer.kind = optim::OptimizerKind::momentum;
  }
  train.summary_every = 0;
  train.lr = 1e-6;  // the work is the same for any rate
  return train;
}

data::DatasetInfo generated_images(const config::TrainConfig& config, int ranks) {
  data::DatasetInfo info;
  info.image = {32, 32, 3};
  info.label_names = data::cifar10_label_names();
  info.test_count = 1;
  info.train_count = static_cast<std::uint64_t>(ranks) * images_of(config);
  return info;
}

void BenchmarkRun::build(const comm::PlatformFactory& make_platform) {
  step::plan_for(plan, generated_images(plan.config, plan.world.size()));
  // Of any images: a run reads these off its own.
  std::fill_n(plan.network.augment.mean, data::kMostChannels, 120.0f);
  std::fill_n(plan.network.augment.deviation, data::kMostChannels, 60.0f);
  step::plan_device(plan, device, make_platform);
  data::Samples train, test;
  constexpr std::size_t kDrawn = 256;  // to draw all images takes as long as twenty small steps
  data::make_synthetic(plan.info.image, 10, kDrawn, plan.config.seed, train, test);
  const auto repeat = [&](std::vector<std::uint8_t>& values) {
    const std::size_t drawn = values.size(), size = drawn / kDrawn * images_of(plan.config);
    values.resize(size);
    for (std::size_t i = drawn; i < size; ++i) values[i] = values[i - drawn];
  };
  repeat(train.images);
  repeat(train.labels);
  device.samples = evaluation::ResidentData(*device.backend, train);
}

void BenchmarkRun::write_initial_state() {
  const std::vector<optim::StateRow> rows(blocks.state.rows().begin(), blocks.state.rows().end());
  const auto initial = evaluation::initial_tensors(plan.network.params, plan.config.seed);
  blocks.state.write(*device.backend, *device.tower, run::initial_state(rows, initial));
}

}  // namespace cifar_mpi::bench
