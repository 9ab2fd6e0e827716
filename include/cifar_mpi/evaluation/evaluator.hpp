#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/lower/tower.hpp"
#include "cifar_mpi/run/evaluation_file.hpp"

namespace cifar_mpi::evaluation {

/// Samples of a split in backend memory.
class ResidentData {
 public:
  ResidentData() = default;
  /// Reads `part` of the split in hyperslabs of a few thousand images, so that the host never holds it twice.
  /// Fingerprints the samples that also lie in `fingerprinted`.
  ResidentData(engine::Backend& backend, const data::DatasetFile& file, data::Split split, data::Shard part,
               data::Shard fingerprinted = {});
  ResidentData(engine::Backend& backend, const data::Samples& samples);
  engine::DataView view() const;
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  Buffer images_;
  Buffer labels_;
  std::uint64_t count_ = 0;
  std::uint64_t fingerprint_ = 0;
};

/// Compares the summary of `file` (data::summarize) with rank 0's; `path` is for the message. Collective.
/// Throws AgreedError{data} naming the first item in which a rank's file differs.
void require_equal_data(const comm::World& world, const data::DatasetFile& file, const std::string& path);

struct ClassAccuracy {
  std::uint64_t correct = 0;
  std::uint64_t count = 0;
};

/// The outcome over the whole test split, the same on every rank.
struct Accuracy {
  std::vector<ClassAccuracy> classes;
  std::vector<std::uint64_t>
      confusion;  ///< [classes, classes]: images of the row's class that are predicted as the column's
  double cross_entropy = 0.0;  ///< mean
  std::uint64_t correct() const;
  std::uint64_t count() const;
  double precision_at_1() const { return static_cast<double>(correct()) / static_cast<double>(count()); }
};

/// Evaluates one block of parameters on the test split; each rank takes a contiguous part.
class Evaluator {
 public:
  /// `part` is this rank's; all parts together are the split. `params` is a block of `tower`'s layout in
  /// backend memory. `kind` is the kind of runner. `logits` may be called only with `keeps_logits`. All
  /// arguments must outlive the evaluator.
  Evaluator(engine::Backend& backend, const lower::Tower& tower, engine::Arena& arena,
            const comm::World& world, const data::DatasetFile& file, data::Shard part,
            const data::AugmentSpec& augment, int batch, const float* params,
            engine::RunnerKind kind = engine::RunnerKind::automatic, bool keeps_logits = false);
  /// For images without labels (stored as 255): they count in no sum, and only `logits` may be called after
  /// `run`.
  Evaluator(engine::Backend& backend, const lower::Tower& tower, engine::Arena& arena,
            const comm::World& world, const data::Samples& images, std::size_t classes,
            const data::AugmentSpec& augment, int batch, const float* params);
  /// For a rank without samples: it takes part in the sums of the others.
  Evaluator(engine::Backend& backend, const comm::World& world, const data::DatasetFile& file);

  /// As for a runner.
  void show_in(engine::ProgressCounter& counter) {
    if (runner_ != nullptr) runner_->show_in(counter);
  }
  /// Collective. Reads the block as it is now.
  Accuracy run();
  /// Collective; after `run`. The contents of evaluation.h5 for that run, except step and weights; the same
  /// on all ranks, but for the list of all mistakes, which only rank 0 has.
  run::EvaluationFile record(const Accuracy& accuracy) const;
  /// Collective; after `run`. The logits of that run, [images, classes], on rank 0, in rank order. Empty on
  /// the other ranks.
  std::vector<float> logits() const;

 private:
  Evaluator(engine::Backend& backend, const comm::World& world, std::size_t classes)
      : backend_(backend), world_(world), classes_(classes) {}
  void plan(const lower::Tower& tower, engine::Arena& arena, const data::AugmentSpec& augment, int batch,
            const float* params, engine::RunnerKind kind, bool keeps_logits);

  engine::Backend& backend_;
  const comm::World& world_;
  int batch_ = 0;
  std::size_t classes_;
  std::vector<std::string> label_names_;
  std::vector<std::string> files_;  ///< of the images of the split, on rank 0, if the dataset names them
  Extent image_;
  std::uint64_t first_ = 0;              ///< of this rank's part, in the split
  std::vector<std::uint8_t> labels_;     ///< host copy of this rank's
  std::vector<std::uint8_t> predicted_;  ///< of the last run
  ResidentData data_;
  Buffer cursor_;
  Buffer predictions_;
  Buffer loss_sum_;
  Buffer batch_logits_;
  bool keeps_logits_ = false;
  std::vector<float> probabilities_;  ///< of the predicted classes in the last run; this rank's
  std::vector<float> logits_;         ///< of the last run, if they are kept; this rank's
  std::unique_ptr<engine::Runner> runner_;
};

}  // namespace cifar_mpi::evaluation
