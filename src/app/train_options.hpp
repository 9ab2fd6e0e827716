#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>

#include "cifar_mpi/config/config.hpp"

namespace cifar_mpi::app {

/// The options of a training run on a command line: the rows of config::options().
class TrainOptions {
 public:
  /// Adds the options to `app`; this object must outlive the parse.
  void add_to(CLI::App& app);
  /// The chosen configuration. `text` is empty, `data` is as given.
  const config::TrainConfig& config() const { return config_; }
  /// The names of those that --help shows.
  static std::set<std::string> everyday();

 private:
  config::TrainConfig config_;
};

/// The layers of the configured model as a table, for CIFAR-10's images if no dataset was named and none is
/// found. Throws if the named model or dataset is wrong.
std::string describe_model(const config::TrainConfig& config);

}  // namespace cifar_mpi::app
