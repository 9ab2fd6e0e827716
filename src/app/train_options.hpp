#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/train/config.hpp"

namespace cifar_mpi::app {

/// The options of a training run.
class TrainOptions {
 public:
  /// Adds the options to `app`; this object must outlive the parse.
  void add_to(CLI::App& app);
  /// What was chosen. `text` is not filled in, `data` is as given.
  train::TrainConfig config() const;
  cpu::InstructionSet instructions() const { return instructions_; }

 private:
  void add_run(CLI::App& app);
  void add_model(CLI::App& app);
  void add_batches(CLI::App& app);
  void add_input(CLI::App& app);
  void add_exchange(CLI::App& app);
  void add_optimizer(CLI::App& app);
  void add_schedule(CLI::App& app);
  void add_regularization(CLI::App& app);
  void add_reports(CLI::App& app);

  train::TrainConfig config_;
  cpu::InstructionSet instructions_ = cpu::InstructionSet::automatic;
  std::string init_from_ = "none";
  std::string side_lane_ = "on";
  std::string tensorboard_ = "on";
  std::string trace_ = "none";
  std::string aggregate_ = "all";
  std::string max_staleness_ = "none";
  std::string staleness_rate_ = "off";
  std::string arrival_order_ = "none";
  std::string decay_at_;
};

}  // namespace cifar_mpi::app
