#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cifar_mpi/train/config.hpp"

namespace cifar_mpi::app {

/// The options of a training run as they stand on the command line; words are kept as words, so that
/// --print-config writes them back as they are read.
class TrainOptions {
 public:
  /// Adds the options to `app`; this object must outlive the parse.
  void add_to(CLI::App& app);
  /// What was chosen. `text` is not filled in, `data` is as given.
  train::TrainConfig config() const;

 private:
  void add_run(CLI::App& app);
  void add_model(CLI::App& app);
  void add_batches(CLI::App& app);
  void add_exchange(CLI::App& app);
  void add_optimizer(CLI::App& app);
  void add_reports(CLI::App& app);

  train::TrainConfig config_;
  std::string precision_ = "auto";
  std::string overlap_ = "auto";
  std::string side_lane_ = "on";
  std::string wire_ = "fp32";
  std::string runner_ = "auto";
  std::string augment_ = "tutorial";
  std::string crop_fill_ = "zeros";
  std::string flip_ = "random";
  std::string normalize_ = "image";
  std::string shuffle_ = "shard";
  std::string optimizer_ = "sgd";
  std::string schedule_ = "staircase";
  std::string decay_at_;
  std::string lr_scaling_ = "none";
};

}  // namespace cifar_mpi::app
