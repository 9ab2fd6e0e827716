#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/data/image_folder.hpp"
#include "cifar_mpi/evaluation/evaluate_checkpoint.hpp"

/// What cifar_mpi_eval prints and writes. src/run/inference.md documents the formats.
namespace cifar_mpi::app {

/// The checkpoint that an output is about.
struct EvaluatedCheckpoint {
  std::string path;
  std::string weights;  ///< ema or raw
  int views = 1;        ///< of each image
};

/// The images of --predict.
struct PredictedImages {
  std::vector<std::string> paths;
  std::vector<data::ImageSize> sizes;  ///< before scaling
  int size = 0;                        ///< width and height after scaling
};

void print_evaluation(const Log& log, const EvaluatedCheckpoint& checkpoint,
                      const evaluation::Evaluation& evaluation);
void print_predictions(const Log& log, const PredictedImages& images,
                       const evaluation::Evaluation& evaluation);

/// One JSON object, with a line feed.
std::string evaluation_json(const EvaluatedCheckpoint& checkpoint, const evaluation::Evaluation& evaluation);
std::string predictions_json(const EvaluatedCheckpoint& checkpoint, const PredictedImages& images,
                             const evaluation::Evaluation& evaluation);

/// Throws Error{usage} unless the name ends with .csv or .h5, and if there is another file than such predictions; then as
/// prepare_output.
void check_predictions_file(const std::string& path, bool force);
/// Writes the predictions of a whole split as CSV or HDF5, with the label and the file of each image; `files` may be empty.
/// Throws Error{io}.
void write_predictions(const std::string& path, const EvaluatedCheckpoint& checkpoint,
                       const evaluation::Evaluation& evaluation, const std::vector<std::uint8_t>& labels,
                       const std::vector<std::string>& files);

}  // namespace cifar_mpi::app
