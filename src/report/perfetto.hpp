#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/report/timeline.hpp"
#include "report/protobuf.hpp"

namespace cifar_mpi::report {

/// A timeline in the format of Perfetto's traces (perfetto.dev; messages of
/// perfetto/trace/trace_packet.proto), in pieces that form a file when concatenated.
///
/// A process for each rank, named after its host, with a track of its steps and one for each lane. A task is
/// a slice from its first stretch to its last; the slice of a collective contains the stretches in which the
/// thread started or polled it. An interrupted task has an annotation with its own run time. Arrows lead from
/// the tasks that a collective follows to it, and through the ranks of one collective in the order in which
/// they started it. Counters: bytes of the collectives in flight, by rank; images per second and the loss, of
/// the run.
///
/// Times are those of the timeline, rank 0's steady clock. Each step has an annotation with the uncertainty
/// of the conversion to it.
class PerfettoTrace {
 public:
  /// `head` is a timeline; its steps are ignored.
  explicit PerfettoTrace(Timeline head);

  /// The tracks, and the names that the steps refer to.
  std::string begin() const;
  /// A step, with its loss if that is known. Its slice has the step number of the log lines.
  std::string step(const Timeline::Step& step, std::optional<double> loss) const;

 private:
  /// The first and the last slice of a task in a step; empty if it has none.
  struct Span {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    std::int64_t own_ns = 0;
    std::vector<Slice> parts;
  };

  Message tracks_of(std::size_t rank) const;
  std::vector<Span> spans_of(const RankStep& step) const;
  void add_rank(Message& trace, const Timeline::Step& step, std::size_t rank) const;
  void add_task(Message& trace, const Timeline::Step& step, std::size_t rank, std::size_t task,
                const Span& span) const;
  void add_bytes_in_flight(Message& trace, std::size_t rank, const std::vector<Span>& spans) const;
  std::uint64_t flow(std::uint64_t step, std::size_t rank, std::size_t collective, std::size_t which) const;
  std::vector<std::uint64_t> flows_at(std::uint64_t step, std::size_t rank, std::size_t task) const;

  Timeline head_;
  engine::LaneId lanes_ = 1;
};

}  // namespace cifar_mpi::report
