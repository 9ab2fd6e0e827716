#pragma once

#include <string>

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

}  // namespace cifar_mpi::selfcheck
