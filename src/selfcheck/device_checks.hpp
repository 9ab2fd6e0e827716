#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/engine/roofline.hpp"
#include "selfcheck/check_step.hpp"

/// The checks of a self-check: each function makes one line of its table, on one rank.
namespace cifar_mpi::selfcheck {

/// no_graph: only graphs are wrong. refused: no graph could be made. A run without graphs is right in both cases.
/// stopped: an error came first, so the device's results are unknown. cut_off: that error was the network's.
/// slow: right, but far from the device's limits.
enum class Outcome : std::uint8_t { good, bad, left_out, no_graph, refused, stopped, cut_off, slow };

/// A line of one rank's table.
struct CheckRow {
  std::string name;
  Outcome outcome = Outcome::good;
  std::string found;
};

/// Images that a batch repeats, so that the judge computes only these: the smallest divisor of the batch from
/// 8 on.
int distinct_images(int batch);

/// fp32 gradients and loss of `device`, whatever its batch, against those of `judge`, of a batch of `images`.
CheckRow compare_fp32(CheckStep& device, CheckStep& judge, int images);
/// Those of a precision that rounds, against fp32 on the judge; weights off by one rounding give the allowed
/// error.
CheckRow compare_rounded(CheckStep& device, CheckStep& judge, int images);
/// Three steps with each runner; no_graph or refused if in-line and lanes agree and the graph differs or
/// cannot be made.
CheckRow compare_runners(CheckStep& device, int images);
/// Distorted images against the reference.
CheckRow compare_images(CheckStep& device, int images);
/// Whether a NaN in the input reaches the loss and then moves no weight.
CheckRow see_divergence(CheckStep& device, int images);
/// The run's exchange, the update of `device.blocks`, of small integers, whose sums are exact in any order;
/// first on lanes, then as a graph if `graphs`. Collective.
CheckRow compare_sums(CheckStep& device, bool graphs);
/// The steps of the run over all ranks, as `device.plan_run` planned them: one by one, with a summary,
/// several in a graph, traced, and after a resume, against as many on lanes. Bits must be equal, and weights
/// equal on all ranks. Without `graphs` all run on lanes. no_graph or refused if only graphs differ or cannot
/// be made; ranks that wait for a rank that cannot make them throw Error{comm}. Collective.
CheckRow compare_training(CheckStep& device, int images, bool graphs);

struct SlowTask {
  std::string task;
  double seconds = 0.0;
  double floor_s = 0.0;
};

/// The tasks that took more than 20 times their roofline time and over 100 µs, the longest first. `seconds` is by task; those of
/// collectives are left out, because other limits hold them up. A good kernel that is small or bound by instructions
/// takes up to some 10 times its roofline time; a kernel that a library should have replaced takes 40 times and more.
std::vector<SlowTask> slow_tasks(const engine::StepProgram& program, const std::vector<double>& seconds,
                                 const engine::RooflineLimits& limits);

/// Times the tasks of a step one by one, of five replays the shortest time of each, and names the slow ones. Never a
/// fault: a slow device computes what a fast one does.
CheckRow check_speed(CheckStep& device, const engine::RooflineLimits& limits, int images);

}  // namespace cifar_mpi::selfcheck
