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

/// The weight-decay term of the loss for one layer: Σ decay · ½‖weights‖².
struct WeightLoss {
  std::string layer;
  double value = 0.0;
};

/// Facts that are written once per run.
struct RunFacts {
  const model::NetSpec& net;
  RunFingerprint hparams;    ///< for the plugin of that name; numeric texts become numbers
  std::string lacking = {};  ///< a text: which histograms are missing
};

/// RUN_DIR/tensorboard: the values shown in TensorBoard, under the names in the tutorial's script. Rank 0 only.
///
///   total_loss (raw), total_loss          cross-entropy plus weight decay; and its moving average
///   cross_entropy (raw), cross_entropy    of the step's global batch, and its moving average
///   weight_loss (raw), weight_loss        the decay of all layers, if it is a part of the loss
///   LAYER/weight_loss (raw)               of one layer, at steps at which the ranks are compared
///   learning_rate, global_step/sec
///   Precision @ 1                         test accuracy at evaluations, of the averaged weights
///
/// and, as metrics.jsonl calls them, train_accuracy, images_per_second, compute_ms/min, /median and /max,
/// test_cross_entropy; gradient_norm, with clipping at every line, else at summaries;
/// exposed_communication_ms, the mean time per step that rank 0 spent in collectives, starting, polling or
/// awaiting them without computing (on the host, if the runner measures it). Scalars are written with each
/// log line; TensorBoard keeps 1000 per tag. (Newer TensorFlows write "(raw)" as "__raw_".)
///
/// At summaries, histograms of 30 equal buckets, exact counts (engine::ValueCounts):
///
///   LAYER/weights, LAYER/biases …         of each variable
///   LAYER/weights/gradients …             of its gradient
///   LAYER/activations, LAYER/sparsity     of a layer's output, and the share of zeros in it
///   TAG/not_finite                        the number of values in no bucket, if any
///   images                                once per run: the network's input
///   activations/lacking                   a text: the layers that have none, and why
///
/// The moving averages include every step: a' = a + 0.1·(x − a), divided by the total weight so far, so they
/// begin at the first value of each start of a run; those of the script begin at zero.
class TensorBoard {
 public:
  TensorBoard() = default;  ///< off
  /// After `completed` steps. Throws no Error: see EventFile.
  TensorBoard(const DirectoryEntry& folder, std::uint64_t completed, const RunFacts& run, const Log& log);

  /// Every step, in order.
  void note(const engine::StepRecord& record);
  void write(const StepReport& report);
  void write(const EvaluationReport& report);
  /// Of the weights at the beginning of step number `step`, counted from 1.
  void write(std::uint64_t step, const std::vector<WeightLoss>& losses);
  void write(const StepSummary& step);
  /// The images of this step. Does nothing in a build without libpng.
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

/// The network as TensorFlow's GraphDef, which TensorBoard draws: the image and the labels, a node for each operation
/// with its kind and the shape of its output, and a node for each parameter, in a scope with the name of its operation.
/// An unknown number of images is -1. Names have only characters that TensorFlow allows, and are unique.
std::string graph_def(const model::NetSpec& net);

}  // namespace cifar_mpi::report
