#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/engine/layout.hpp"
#include "cifar_mpi/engine/program.hpp"

/// From the flat gradient block to collectives on the comm lane: plan the buckets, then place one all-reduce
/// behind the last task that writes each.
namespace cifar_mpi::comm {

/// A contiguous span of the gradient block that is summed at once.
struct Bucket {
  std::size_t begin = 0;  ///< floats from the start of the parameters' gradients (behind the control block)
  std::size_t end = 0;    ///< whole parameters: [begin, end) never cuts one
};

/// Cuts the gradient block, in the order backward finishes it, into buckets of at least `bucket_bytes` (the
/// last may be smaller), together all of it without gaps; at least one. The first also carries the control
/// block, which does not count for its size. Throws Error{usage} for `bucket_bytes` = 0.
std::vector<Bucket> plan_buckets(const engine::ParamLayout& layout, std::size_t bucket_bytes);

/// Whether all-reduces run beside backward: as `place` with `overlap` true, or false, or as the table says.
enum class Overlap : std::uint8_t { automatic, on, off };

/// What the gradients of a run cross: nothing but a node's memory, a network, or what a device has.
enum class Path : std::uint8_t { memory, network, device };

/// The table behind Overlap::automatic; the reasons stand beside its lines.
bool overlap_pays(Path path);
/// Communicates: every rank calls it. The same answer on all ranks.
bool resolve_overlap(Overlap asked, const World& world, bool device);

/// One training step before the reducer has placed its collectives.
struct StepParts {
  std::vector<engine::Task> compute;  ///< control block to last backward task, in order
  std::vector<engine::Task> update;   ///< one per bucket, needs that bucket's sum
  engine::Task advance;               ///< needs everything
};

/// What runs beside the compute lane.
struct Beside {
  bool all_reduces = true;  ///< false: each waits for the end of backward, to measure what overlap is worth
  bool branches = true;     ///< false: tasks that say `aside` run in their place all the same
};

/// Builds and seals the program: the compute tasks on the compute lane and beside it; right behind the last
/// writer of each bucket a mark, and on the comm lane a wait for it and the bucket's all-reduce; then each
/// update behind its bucket's sum. `control` and `grads` are one array in memory from `collective.allocate`:
/// the control block, then the parameters' gradients.
///
/// A later compute task that only reads a bucket also holds its all-reduce back: it means this rank's values.
/// The all-reduces stand in the order in which their buckets become ready, the updates in bucket order. In a
/// world of one there is no comm lane: compute, updates, advance. The program keeps tasks that refer to
/// `collective`. Throws std::logic_error when the parts do not fit each other or no task writes a bucket, and
/// what `seal` throws.
engine::StepProgram place(StepParts parts, std::span<const Bucket> buckets, std::span<float> control,
                          std::span<float> grads, Collective& collective, Beside beside);

}  // namespace cifar_mpi::comm
