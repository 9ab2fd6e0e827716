#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/roofline.hpp"
#include "cifar_mpi/optim/step_math.hpp"

namespace cifar_mpi::bench {

struct StepBenchmarkConfig {
  std::string model = "tutorial";
  int batch_size = 128;  ///< per rank
  int threads = 0;       ///< per rank; 0: a fair share
  engine::Precision precision = engine::Precision::automatic;
  engine::ConvMethod conv = engine::ConvMethod::automatic;
  std::optional<optim::OptimizerKind> optimizer;  ///< none: that of the model (see benchmark_step)
  comm::Share share_matrices = comm::Share::automatic;
  std::string all_reduce = "auto";
  comm::Wire wire = comm::Wire::fp32;
  double bucket_mib = 1.0;
  int graph_steps = 1;      ///< steps in one launch
  bool share_gpus = false;  ///< ranks may share a GPU
  int rounds = 15;          ///< each measures the ceiling, then some steps
  double round_s = 0.5;     ///< about this many seconds of steps per round
};

/// Minimum, median and maximum over the rounds.
struct Spread {
  double least = 0.0;
  double median = 0.0;
  double most = 0.0;
};

struct StepBenchmark {
  std::string model;
  std::string backend;
  std::string precision;
  std::string optimizer;
  bool shares_matrices = false;  ///< each hidden matrix of muon is computed on one rank
  std::string all_reduce;
  int ranks = 0;
  int batch_size = 0;
  std::string kernels;  ///< which were chosen, by lines (lower::Tower::plan_text)
  /// A hash of the summed gradients of the first two steps. It depends on the kernels, the ranks and the batch; equal
  /// machines get equal ones.
  std::uint64_t bits = 0;
  Spread step_s;  ///< seconds per step, of the slowest rank
  /// Processor time of a rank over wall time and threads, lowest rank of each round. Other work on its cores reduces it.
  Spread processor_share;
  Spread images_per_s;  ///< over all ranks
  /// Each round in up to 50 equal slices: seconds per step of the slowest rank, and the lowest processor share of a rank.
  std::vector<double> slice_s, slice_share;
  Spread peak_flops;  ///< ceiling of one rank, lowest rank of each round
  Spread copy_rate;   ///< bytes/s, as peak_flops
  Spread share;       ///< sum of the tasks' roofline times over step_s, at the rates of the same round
  Spread in_a_row_s;  ///< the step without a side lane; zeros where it has none
  Spread alone_s;     ///< the step without any all-reduce; P > 1 only, as are the next two
  Spread blocking_s;  ///< every all-reduce after the end of backward
  Spread exposed_s;   ///< step_s − alone_s of each round: communication that overlap did not hide
  double in_image_flops = 0.0;  ///< per image and step
  double nominal_flops = 0.0;   ///< the same with padding
  struct Row {
    std::string task;
    double seconds = 0.0;  ///< mean per step, rank 0
    double flops = 0.0;    ///< of products and Fourier transforms
    double bytes = 0.0;    ///< least bytes it moves; 0 for an all-reduce, which has other limits
    double floor_s = 0.0;  ///< at the median rates (see engine/roofline.hpp)
  };
  std::vector<Row> tasks;
  double floor_s = 0.0;         ///< of all tasks
  double resident_bytes = 0.0;  ///< largest resident set of any rank so far
};

/// Measures for about `seconds` the peak rates of one rank's device in a precision; on the CPU with so many
/// threads.
using MeasureLimits =
    std::function<engine::RooflineLimits(engine::Precision precision, int threads, double seconds)>;

/// Measures the training step of a model on generated images of 32x32x3, with all parts of a run's step
/// (distortions, forward, backward, all-reduce, optimizer, EMA). The tutorial's model gets the tutorial's
/// input and SGD; the others get the whole image and momentum, as in their recipes. Collective.
StepBenchmark benchmark_step(const StepBenchmarkConfig& config, const comm::World& world,
                             const comm::PlatformFactory& make_platform, const MeasureLimits& measure_limits);

/// A sentence about exposed_s and the time of the blocking all-reduces, in a unit; `per_second` of them are a second.
std::string exposed_text(const StepBenchmark& result, const char* unit, double per_second);

}  // namespace cifar_mpi::bench
