#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/comm/heartbeat.hpp"
#include "cifar_mpi/evaluation/evaluator.hpp"
#include "cifar_mpi/evaluation/network.hpp"
#include "cifar_mpi/run/checkpoint.hpp"

namespace cifar_mpi::evaluation {

enum class Weights : std::uint8_t { ema, raw };

struct EvaluationConfig {
  std::string data;
  Weights weights = Weights::ema;
  engine::Precision precision = engine::Precision::automatic;
  int threads = 0;       ///< 0: this rank's fair share
  int batch_size = 128;  ///< samples per rank and replay; affects only the speed
  int views = 1;         ///< of each image: 1, 2 or 6
  bool keep_logits = false;
  bool other_classes = false;  ///< the classes of the dataset may have other names than those of the training
};

struct Evaluation {
  std::uint64_t step = 0;
  std::vector<std::string> label_names;
  Accuracy accuracy;
  EvaluationTime time;         ///< of this rank
  run::EvaluationFile record;  ///< for RUN_DIR/evaluation.h5
  std::vector<float> logits;   ///< [images, classes], in the order of the images; on rank 0, if they are kept
  bool same_classes = true;    ///< as in training
  std::string precision;       ///< of this evaluation: fp32 or bf16
  std::string run_precision;   ///< of the run and its own evaluations; empty: unknown
  /// Assumptions about an old checkpoint, and differences between this dataset and the training dataset.
  std::vector<std::string> doubts;
};

/// The network of a checkpoint, with its preprocessing for evaluation.
struct RecordedNetwork {
  Network network;
  /// By label; "class 3" and so on past the end of the checkpoint's list of names.
  std::vector<std::string> label_names;
  /// False if it normalizes by the training set's moments without stating them.
  bool knows_moments = false;
  std::vector<std::string> assumed;  ///< a sentence for each fact that the checkpoint does not state
  std::string never_mirrored;  ///< the option by which no image was mirrored in training; empty if some were

  /// Throws Error{checkpoint} naming `path` unless the moments are known.
  void require_moments(const std::string& path) const;
  /// Throws Error{usage} naming `path` when these views show mirrored images and training showed none.
  void require_views(int views, const std::string& path) const;
};

/// Throws Error{checkpoint} naming `path` when the checkpoint does not state its network.
RecordedNetwork recorded_network(const run::Checkpoint& checkpoint, const std::string& path);

/// The step of the newest valid checkpoint of a run directory; invalid ones are reported. Throws
/// Error{checkpoint} if there is none.
std::uint64_t newest_checkpoint(const Directory& run, const Log& log = Log());

/// Reads a checkpoint on every rank; each rank opens the file itself, and `heart` reports progress.
/// Collective; throws on all ranks Error{checkpoint} if a rank cannot read it, Error{usage} if ranks read
/// different ones.
run::Checkpoint read_on_all_ranks(const InputFile& file, const comm::World& world, comm::Heartbeat& heart);

/// Evaluates a checkpoint, which came from `path`, on the test split over all ranks; `heart` reports
/// progress. Collective; an error of one rank is thrown on all: Error{checkpoint} if the dataset's shape is
/// not the one the checkpoint was trained on, or if it has other classes without `other_classes`; Error{usage} for views that
/// do not fit it.
Evaluation evaluate_checkpoint(const EvaluationConfig& config, run::Checkpoint checkpoint,
                               const std::string& path, const comm::World& world,
                               const comm::PlatformFactory& make_platform, comm::Heartbeat& heart);

/// Computes the logits of images that have no labels; needs no dataset. `images` [n, h, w, c] are this rank's, of the size
/// that the checkpoint was trained on; n may be 0 and differ between ranks. The result has no accuracy and no record.
/// Collective; throws on all ranks Error{checkpoint} when the checkpoint does not state its preprocessing.
Evaluation classify_images(const EvaluationConfig& config, run::Checkpoint checkpoint,
                           const std::string& path, std::vector<std::uint8_t> images,
                           const comm::World& world, const comm::PlatformFactory& make_platform,
                           comm::Heartbeat& heart);

/// Reads the checkpoint and evaluates it.
Evaluation evaluate_checkpoint(const EvaluationConfig& config, const InputFile& file,
                               const comm::World& world, const comm::PlatformFactory& make_platform,
                               comm::Heartbeat& heart);

}  // namespace cifar_mpi::evaluation
