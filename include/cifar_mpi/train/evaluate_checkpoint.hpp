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
};

struct Evaluation {
  std::uint64_t step = 0;
  std::vector<std::string> label_names;
  Accuracy accuracy;
  run::EvaluationFile record;       ///< for RUN_DIR/evaluation.h5
  std::vector<std::string> doubts;  ///< in what the dataset is not the one the checkpoint was trained on
};

/// The network that a checkpoint holds the weights of, with the preprocessing of its evaluation.
struct RecordedNetwork {
  Network network;
  bool knows_moments =
      false;  ///< false: it normalizes by moments of the training set, and does not state them
};

/// Throws Error{checkpoint} naming `path` when the checkpoint does not state them.
RecordedNetwork recorded_network(const run::Checkpoint& checkpoint, const std::string& path);

/// The step of the newest valid checkpoint of a run directory; others are reported. Throws Error{checkpoint} when it
/// holds none.
std::uint64_t newest_checkpoint(const Directory& run, const Log& log = Log());

/// Reads a checkpoint on every rank, which has opened it itself; `heart` shows it. Collective; throws on all ranks Error{checkpoint} when
/// one of them cannot read it, Error{usage} when they read different ones.
run::Checkpoint read_on_all_ranks(const InputFile& file, const comm::World& world, comm::Heartbeat& heart);

/// Evaluates a checkpoint, which came from `path`, on the test split over all ranks; `heart` shows how it
/// gets on. Collective; what goes wrong on one rank is thrown on all: Error{checkpoint} when the dataset is
/// not of the shape the checkpoint was trained on.
Evaluation evaluate_checkpoint(const EvaluationConfig& config, run::Checkpoint checkpoint,
                               const std::string& path, const comm::World& world,
                               const comm::PlatformFactory& make_platform, comm::Heartbeat& heart);

/// Both: reads the checkpoint and evaluates it.
Evaluation evaluate_checkpoint(const EvaluationConfig& config, const InputFile& file,
                               const comm::World& world, const comm::PlatformFactory& make_platform,
                               comm::Heartbeat& heart);

}  // namespace cifar_mpi::train
