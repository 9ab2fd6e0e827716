#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/engine/roofline.hpp"
#include "selfcheck/check_step.hpp"

/// What a self-check looks at: each function one line of its table, on one rank.
namespace cifar_mpi::selfcheck {

/// no_graph: only graphs are wrong. refused: no graph could be made. A run without graphs is right in both cases.
/// stopped: an error came first, which says nothing of what the device computes. cut_off: that error is the network's.
/// slow: right, but far from the device's limits.
enum class Outcome : std::uint8_t { good, bad, left_out, no_graph, refused, stopped, cut_off, slow };

/// A line of one rank's table.
struct CheckRow {
  std::string name;
  Outcome outcome = Outcome::good;
  std::string found;
};

/// A batch is made of so many images again and again, so the judge has to compute only these: the smallest divisor from
/// 8 on.
int distinct_images(int batch);

/// fp32 gradients and loss of `device`, whatever its batch, against those of `judge`, of a batch of `images`.
CheckRow compare_fp32(CheckStep& device, CheckStep& judge, int images);
/// Those of a precision that rounds, against fp32 on the judge, where weights that are off by a rounding show what
/// that does.
CheckRow compare_rounded(CheckStep& device, CheckStep& judge, int images);
/// Three steps with each runner; no_graph or refused where those in line and on lanes agree and the graph does not, or cannot be made.
CheckRow compare_runners(CheckStep& device, int images);
/// Distorted images against the reference.
CheckRow compare_images(CheckStep& device, int images);
/// Whether NaN in the input reaches the loss, and then no weight moves.
CheckRow see_divergence(CheckStep& device, int images);
/// The exchange of the run, which the update of `device.blocks` is, of small integers: their sums are exact however they are
/// added; first on lanes, then as a graph if `graphs`. Collective.
CheckRow compare_sums(CheckStep& device, bool graphs);
/// The steps of the run over all ranks, as `device.plan_run` has planned them: one by one, with a summary, several in a graph,
/// traced, and after a resume, against as many on lanes; bits must be equal, and weights on all ranks. Without `graphs` all on
/// lanes. no_graph or refused where graphs alone differ or cannot be made; the ranks that wait for one that cannot make them throw
/// Error{comm}. Collective.
CheckRow compare_training(CheckStep& device, int images, bool graphs);

struct SlowTask {
  std::string task;
  double seconds = 0.0;
  double floor_s = 0.0;
};

/// The tasks that took more than 20 times their floor and over 100 µs, the longest first. `seconds` is by task; those of
/// collectives are left out, because other limits hold them up. A good kernel that is small or bound by instructions
/// takes up to some 10 times its roofline time; a kernel that a library should have replaced takes 40 times and more.
std::vector<SlowTask> slow_tasks(const engine::StepProgram& program, const std::vector<double>& seconds,
                                 const engine::RooflineLimits& limits);

/// Times the tasks of a step one by one, of five replays the shortest time of each, and names the slow ones. Never a
/// fault: a slow device computes what a fast one does.
CheckRow check_speed(CheckStep& device, const engine::RooflineLimits& limits, int images);

}  // namespace cifar_mpi::selfcheck
