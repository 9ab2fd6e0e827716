#pragma once

#include <cstdint>
#include <functional>

#include "cifar_mpi/config/config.hpp"

namespace cifar_mpi::config {

using Change = std::function<void(TrainConfig&)>;

/// The defaults with a dataset and this change.
inline TrainConfig changed(const Change& change) {
  TrainConfig config;
  config.data = "some/data.h5";
  change(config);
  return config;
}

/// A dataset of that many training images.
inline data::DatasetInfo dataset_of(std::uint64_t samples) {
  data::DatasetInfo info;
  info.image = {32, 32, 3};
  info.label_names = {"cat", "dog"};
  info.train_count = samples;
  info.test_count = 10;
  return info;
}

}  // namespace cifar_mpi::config
