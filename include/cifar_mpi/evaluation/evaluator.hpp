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

/// How one view shows an image to the network, and the share of its logits in the mean over all views.
struct View {
  data::AugmentSpec augment;
  double share = 1.0;
};

/// 1: the image alone. 2: the image and its mirror image, half each. 6: half these two, half the mean of the image moved by
/// one pixel down and right, and by one up and left, each also mirrored (Jordan, "94% on CIFAR-10 in 3.29 Seconds on a
/// Single GPU", 2024); pixels beyond the edge are reflected. Throws Error{usage} for another number, and if 6 views move an
/// image that has fewer than 2 pixels a side.
std::vector<View> views_of(int count, data::AugmentSpec augment);

/// The outcome over the whole test split, the same on every rank.
struct Accuracy {
  std::vector<ClassAccuracy> classes;
  std::vector<std::uint64_t>
      confusion;  ///< [classes, classes]: images of the row's class that are predicted as the column's
  double cross_entropy = 0.0;       ///< mean
  std::uint64_t plain_correct = 0;  ///< by the first view alone
  std::uint64_t correct() const;
  std::uint64_t count() const;
  double precision_at_1() const { return static_cast<double>(correct()) / static_cast<double>(count()); }
};

/// What an Evaluator computes.
struct EvaluatorSpec {
  const float* params = nullptr;  ///< a block of the tower's layout in backend memory
  data::AugmentSpec augment;      ///< as in training; evaluation takes the centre of each image
  int views = 1;
  int batch = 0;  ///< of the tower
  engine::RunnerKind kind = engine::RunnerKind::automatic;
};

/// Seconds of this rank in the last run.
struct EvaluationTime {
  double first_view_s = 0.0;
  double other_views_s = 0.0;
};

/// Evaluates one block of parameters on the test split; each rank takes a contiguous part. With several views the network
/// runs once per view, and the host takes the mean of the logits, in double and in the order of the views, so its bits are
/// a function of the logits alone.
class Evaluator {
 public:
  /// `part` is this rank's; all parts together are the split. All arguments must outlive the evaluator. Throws as views_of.
  Evaluator(engine::Backend& backend, const lower::Tower& tower, engine::Arena& arena,
            const comm::World& world, const data::DatasetFile& file, data::Shard part,
            const EvaluatorSpec& spec);
  /// For images without labels (stored as 255): they count in no sum, and only `logits` may be called after
  /// `run`.
  Evaluator(engine::Backend& backend, const lower::Tower& tower, engine::Arena& arena,
            const comm::World& world, const data::Samples& images, std::size_t classes,
            const EvaluatorSpec& spec);
  /// For a rank without samples: it takes part in the sums of the others.
  Evaluator(engine::Backend& backend, const comm::World& world, const data::DatasetFile& file);

  /// As for a runner.
  void show_in(engine::ProgressCounter& counter) {
    for (const ViewRunner& view : views_) view.runner->show_in(counter);
  }
  /// Collective. Reads the block as it is now.
  Accuracy run();
  /// Collective; after `run`. The contents of evaluation.h5 for that run, except step and weights; the same
  /// on all ranks, but for the list of all mistakes, which only rank 0 has.
  run::EvaluationFile record(const Accuracy& accuracy) const;
  /// Collective; after `run`. The logits of that run, [images, classes], on rank 0, in rank order. Empty on
  /// the other ranks.
  std::vector<float> logits() const;
  const EvaluationTime& time() const { return time_; }

 private:
  struct ViewRunner {
    std::unique_ptr<engine::Runner> runner;
    double share = 1.0;
  };
  /// One run over this rank's images.
  struct Pass {
    std::vector<std::uint8_t> predictions;
    std::vector<float> logits;
    double loss = 0.0;  ///< cross-entropy, summed
  };
  Evaluator(engine::Backend& backend, const comm::World& world, std::size_t classes)
      : backend_(backend), world_(world), classes_(classes) {}
  void plan(const lower::Tower& tower, engine::Arena& arena, const EvaluatorSpec& spec);
  Pass pass(engine::Runner& runner);
  Pass mean_of_views(const Pass& first);

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
  std::vector<float> logits_;  ///< of the last run; this rank's
  std::vector<ViewRunner> views_;
  EvaluationTime time_;
};

}  // namespace cifar_mpi::evaluation
