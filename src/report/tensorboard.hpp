#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/run_fingerprint.hpp"
#include "cifar_mpi/engine/layout.hpp"
#include "cifar_mpi/model/net_spec.hpp"
#include "cifar_mpi/report/metrics.hpp"
#include "report/event_file.hpp"
#include "report/step_summary.hpp"

namespace cifar_mpi::report {

/// The term of the loss that the weight decay of one layer is: Σ decay · ½‖weights‖².
struct WeightLoss {
  std::string layer;
  double value = 0.0;
};

/// What is told of a run once.
struct RunFacts {
  const model::NetSpec& net;
  RunFingerprint hparams;    ///< for the plugin of that name; texts that are numbers become numbers
  std::string lacking = {};  ///< which histograms there will not be, in words
};

/// RUN_DIR/tensorboard: what people watch in TensorBoard, under the names that the tutorial's script gives
/// its summaries. Rank 0 only.
///
///   total_loss (raw), total_loss          cross-entropy plus weight decay; and its moving average
///   cross_entropy (raw), cross_entropy    of the step's global batch; and so on
///   weight_loss (raw), weight_loss        the decay of all layers, where it is a part of the loss
///   LAYER/weight_loss (raw)               of one layer, at the steps where the ranks are compared
///   learning_rate, global_step/sec
///   Precision @ 1                         test accuracy at evaluations, of the averaged weights
///
/// and, as metrics.jsonl calls them, train_accuracy, images_per_second, compute_ms/min, /median and /max,
/// test_cross_entropy; gradient_norm where gradients are clipped, else at summaries; exposed_communication_ms, how
/// long a step of rank 0 was in collectives, in the mean: it starts them, moves them or waits for them, and
/// computes nothing (where the runner can tell, on the host). Scalars stand at the steps of the log's
/// lines: TensorBoard keeps 1000 of a tag. (Newer TensorFlows write "(raw)" as "__raw_".)
///
/// At summaries, histograms of 30 equal buckets, exact counts (engine::ValueCounts):
///
///   LAYER/weights, LAYER/biases …         of each variable
///   LAYER/weights/gradients …             of its gradient
///   LAYER/activations, LAYER/sparsity     of a layer's output, and the share of zeros in it
///   TAG/not_finite                        how many values are in no bucket, where there are any
///   images                                once per run: what the network sees
///   activations/lacking                   a text: the layers that have none, and why
///
/// The moving averages take in every step: a' = a + 0.1·(x − a), divided by the share of what has been seen,
/// so that they begin at the first value, anew at each start of a run; the script's begin at zero.
class TensorBoard {
 public:
  TensorBoard() = default;  ///< off
  /// After `completed` steps. Throws no Error: see EventFile.
  TensorBoard(const DirectoryEntry& folder, std::uint64_t completed, const RunFacts& run, const Log& log);

  /// Every step, in order.
  void note(const engine::StepRecord& record);
  void write(const StepReport& report);
  void write(const EvaluationReport& report);
  /// Of the weights with which step number `step`, from 1 on, began.
  void write(std::uint64_t step, const std::vector<WeightLoss>& losses);
  void write(const StepSummary& step);
  /// As seen in this step. Nothing in a build without libpng.
  void write(std::uint64_t step, const InputImages& images);

  explicit operator bool() const { return static_cast<bool>(file_); }

 private:
  class MovingAverage {
   public:
    void add(double value);
    double value() const { return sum_ / share_; }

   private:
    double sum_ = 0.0;
    double share_ = 0.0;
  };
  /// The value of the step and the average of all steps.
  static void loss(Summary& summary, const std::string& name, double value, const MovingAverage& average);

  EventFile file_;
  MovingAverage cross_entropy_;
  MovingAverage weight_loss_;
};

}  // namespace cifar_mpi::report
