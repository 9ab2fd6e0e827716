#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/engine/layout.hpp"

/// The update of synchronous data-parallel training: gradients are summed over all ranks, and every rank
/// makes the same step.
namespace cifar_mpi::comm {

/// Cuts the gradients of the trained parameters, in the order backward finishes them, into buckets of at
/// least `bucket_bytes` (the last may be smaller), without gaps; at least one bucket. Throws Error{usage} for
/// `bucket_bytes` = 0.
std::vector<ParamSpan> plan_buckets(const engine::ParamLayout& layout, std::size_t bucket_bytes);

/// Whether all-reduces overlap with backward: always, never, or by the table.
enum class Overlap : std::uint8_t { automatic, on, off };
constexpr auto names_of(Overlap) {
  return std::to_array<Name<Overlap>>(
      {{"auto", Overlap::automatic}, {"on", Overlap::on}, {"off", Overlap::off}});
}

/// What the gradients of a run cross: a node's memory, a network, or the links of a device.
enum class Path : std::uint8_t { memory, network, device };

/// The table of Overlap::automatic; comments in it give the reasons.
bool overlap_pays(Path path);
/// Collective; returns the same on all ranks.
bool resolve_overlap(Overlap asked, const World& world, bool device);

/// Whether each hidden matrix of muon is computed by one rank, which then sends the result to the others.
enum class Share : std::uint8_t { automatic, on, off };
constexpr auto names_of(Share) {
  return std::to_array<Name<Share>>({{"auto", Share::automatic}, {"on", Share::on}, {"off", Share::off}});
}
/// The table of Share::automatic; comments in it give the reasons.
bool share_pays(Path path);
/// Collective; returns the same on all ranks.
bool resolve_share(Share asked, const World& world, bool device);

struct AllReduceSettings {
  double bucket_mib = 1.0;          ///< as `plan_buckets`, in MiB
  Wire wire = Wire::fp32;           ///< what `collective` was made with
  bool overlap = true;              ///< false: every all-reduce waits for the end of backward
  int blocks = 1;                   ///< blocks of the size of the trained parameters, after the control block
  std::size_t rank_sum_floats = 0;  ///< of `rank_sums`; unused in a world of one
};

/// One all-reduce per bucket of gradients, and then the same update on every rank.
///
/// `append` puts the compute tasks on the compute lane and its branches; right after the last task that
/// touches a bucket it sets a mark; the comm lane waits for the mark and runs the bucket's all-reduce; each
/// update follows its bucket's sum. The first bucket also carries the control block, which does not count
/// towards its size and is sent as fp32.
///
/// Several consecutive blocks may be summed, each cut like the first (local steps also average the
/// optimizer's state); a step may sum the first one alone.
///
/// Sums during the compute tasks (`rank_sums`) are sent as fp32. They also run on the comm lane, after all that it was
/// given before, and later compute tasks wait for them. Sums among the update tasks
/// run there too. Meanwhile the compute lane runs the tasks before the sums of later spans; the tasks after a sum wait for it.
///
/// A later compute task that only reads a bucket also delays its all-reduce, because it needs this rank's
/// values. The all-reduces are in the order in which their buckets become ready, the updates in bucket order.
/// In a world of one there is no comm lane, and one update: compute, update, advance. `append` throws
/// std::logic_error also when no task writes a bucket.
class AllReduceUpdate final : public Update {
 public:
  AllReduceUpdate(std::unique_ptr<Collective> collective, const engine::ParamLayout& layout,
                  const AllReduceSettings& settings);

  std::string_view name() const override { return collective_->name(); }
  std::string note() const override { return collective_->note(); }
  RunFingerprint settings() const override;
  void allocate(std::size_t control_floats) override;
  GradientBlock& block() override { return block_; }
  std::span<float> rank_sums() override { return rank_sums_.span<float>(); }
  std::span<const ParamSpan> spans() const override { return buckets_; }
  void append(engine::StepProgram& program, StepParts parts, Concurrency concurrent) override;

 private:
  engine::Task with_work(engine::Task sum);

  std::unique_ptr<Collective> collective_;
  AllReduceSettings settings_;
  std::vector<ParamSpan> buckets_;
  GradientBlock block_;  ///< in memory of `collective_`, as rank_sums_
  Buffer rank_sums_;
};

}  // namespace cifar_mpi::comm
