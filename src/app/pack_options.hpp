#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cifar_mpi/base/shape.hpp"

/// The options of cifar_mpi_pack.
namespace cifar_mpi::app {

struct PackOptions {
  std::string binary_dir;
  bool coarse = false;
  std::string png_dir;
  std::string image_dir;
  int size = 0;
  double test_share = 0.1;
  bool stratify = false;  ///< takes `test_share` of each class
  std::string test_dir;   ///< empty: split by `test_share`
  bool skip_unreadable = false;
  std::uint64_t synthetic = 0;
  std::string out;
  std::uint64_t limit = 0;  ///< 0: all
  std::string image = "32x32x3";
  int classes = 10;
  std::uint64_t seed = 1;
  std::string to_binary;
  bool force = false;
};

void add_options(CLI::App& app, PackOptions& options);

/// "HEIGHTxWIDTHxCHANNELS". Throws Error{usage}.
Extent parse_extent(const std::string& text);

}  // namespace cifar_mpi::app
