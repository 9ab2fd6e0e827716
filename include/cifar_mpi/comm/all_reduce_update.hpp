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

/// The update of synchronous data-parallel training: every rank sums every gradient and makes the same step.
namespace cifar_mpi::comm {

/// Cuts the gradients of the trained parameters, in the order backward finishes them, into buckets of at least `bucket_bytes` (the last
/// may be smaller), together all of them without gaps; at least one. Throws Error{usage} for
/// `bucket_bytes` = 0.
std::vector<ParamSpan> plan_buckets(const engine::ParamLayout& layout, std::size_t bucket_bytes);

/// Whether all-reduces run while backward goes on: always, never, or as the table says.
enum class Overlap : std::uint8_t { automatic, on, off };
constexpr auto names_of(Overlap) {
  return std::to_array<Name<Overlap>>(
      {{"auto", Overlap::automatic}, {"on", Overlap::on}, {"off", Overlap::off}});
}

/// What the gradients of a run cross: nothing but a node's memory, a network, or what a device has.
enum class Path : std::uint8_t { memory, network, device };

/// The table behind Overlap::automatic; the reasons stand beside its lines.
bool overlap_pays(Path path);
/// Communicates: every rank calls it. The same answer on all ranks.
bool resolve_overlap(Overlap asked, const World& world, bool device);

struct AllReduceSettings {
  double bucket_mib = 1.0;  ///< as `plan_buckets`, in MiB
  Wire wire = Wire::fp32;   ///< what `collective` was made with
  bool overlap = true;      ///< false: every all-reduce waits for the end of backward
  int blocks = 1;  ///< of the size of the trained parameters: what `allocate` gives behind the control block
};

/// One all-reduce per bucket of gradients, and then the same update on every rank.
///
/// `append` puts the compute tasks on the compute lane and its branches; right behind the last task that
/// touches a bucket a mark, and on the comm lane a wait for it and the bucket's all-reduce; then each update
/// behind its bucket's sum. The first bucket also carries the control block, which does not count for its
/// size and travels as fp32.
///
/// There may be several blocks to sum, one behind the other and each cut as the first (local steps average what the
/// optimizer keeps as well); a step may be of the first one alone.
///
/// A later compute task that only reads a bucket also holds its all-reduce back: it means this rank's values.
/// The all-reduces stand in the order in which their buckets become ready, the updates in bucket order. In a
/// world of one there is no comm lane, and one update: compute, update, advance. `append` throws std::logic_error also when
/// no task writes a bucket.
class AllReduceUpdate final : public Update {
 public:
  AllReduceUpdate(std::unique_ptr<Collective> collective, const engine::ParamLayout& layout,
                  const AllReduceSettings& settings);

  std::string_view name() const override { return collective_->name(); }
  std::string note() const override { return collective_->note(); }
  RunFingerprint settings() const override;
  Buffer allocate(std::size_t control_floats) override;
  std::span<const ParamSpan> spans() const override { return buckets_; }
  void append(engine::StepProgram& program, StepParts parts, Concurrency concurrent) override;

 private:
  std::unique_ptr<Collective> collective_;
  AllReduceSettings settings_;
  std::vector<ParamSpan> buckets_;
};

}  // namespace cifar_mpi::comm
