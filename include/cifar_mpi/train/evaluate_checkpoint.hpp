#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/comm/heartbeat.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/train/evaluator.hpp"
#include "cifar_mpi/train/network.hpp"
#include "cifar_mpi/train/session.hpp"

namespace cifar_mpi::train {

enum class Weights : std::uint8_t { ema, raw };

struct EvaluationConfig {
  std::string data;
  Weights weights = Weights::ema;
  engine::Precision precision = engine::Precision::automatic;
  int threads = 0;       ///< 0: this rank's fair share
  int batch_size = 128;  ///< samples per rank and replay; no effect on the result but speed
  bool keep_logits = false;
  bool other_classes = false;  ///< the classes of the dataset may have other names than those of the training
};

struct Evaluation {
  std::uint64_t step = 0;
  std::vector<std::string> label_names;
  Accuracy accuracy;
  run::EvaluationFile record;  ///< for RUN_DIR/evaluation.h5
  std::vector<float> logits;   ///< [images, classes], in the order of the images; on rank 0, if they are kept
  bool same_classes = true;    ///< as in training
  /// What was assumed of an old checkpoint, and how the dataset differs from the one that it was trained on.
  std::vector<std::string> doubts;
};

/// The network that a checkpoint holds the weights of, with the preprocessing of its evaluation.
struct RecordedNetwork {
  Network network;
  /// By label; "class 3" and the like where the checkpoint's list of names is not that long.
  std::vector<std::string> label_names;
  /// False: it normalizes by moments of the training set, and does not state them.
  bool knows_moments = false;
  std::vector<std::string> assumed;  ///< sentences on what the checkpoint does not state

  /// Throws Error{checkpoint} naming `path` unless the moments are known.
  void require_moments(const std::string& path) const;
};

/// Throws Error{checkpoint} naming `path` when the checkpoint does not state its network.
RecordedNetwork recorded_network(const run::Checkpoint& checkpoint, const std::string& path);

/// The step of the newest valid checkpoint of a run directory; others are reported. Throws Error{checkpoint} when it
/// holds none.
std::uint64_t newest_checkpoint(const Directory& run, const Log& log = Log());

/// Reads a checkpoint on every rank, which has opened it itself; `heart` shows it. Collective; throws on all ranks Error{checkpoint} when
/// one of them cannot read it, Error{usage} when they read different ones.
run::Checkpoint read_on_all_ranks(const InputFile& file, const comm::World& world, comm::Heartbeat& heart);

/// Evaluates a checkpoint, which came from `path`, on the test split over all ranks; `heart` shows how it
/// gets on. Collective; what goes wrong on one rank is thrown on all: Error{checkpoint} when the dataset is
/// not of the shape the checkpoint was trained on, or has other classes without `other_classes`.
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

/// Both: reads the checkpoint and evaluates it.
Evaluation evaluate_checkpoint(const EvaluationConfig& config, const InputFile& file,
                               const comm::World& world, const comm::PlatformFactory& make_platform,
                               comm::Heartbeat& heart);

}  // namespace cifar_mpi::train
