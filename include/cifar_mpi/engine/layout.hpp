#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/model/param_table.hpp"

/// The flat blocks of a run: parameters, gradients and EMA have one layout, in the order of the ParamTable.
namespace cifar_mpi::engine {

/// Where each parameter lies in a flat fp32 block; entry i belongs to ParamTable[i]. The inner layout of a
/// span is the backend's own; padding inside or behind it is zero and stays zero.
struct ParamLayout {
  struct Entry {
    std::size_t offset = 0;  ///< floats from the start of the block, a multiple of 16
    std::size_t floats = 0;  ///< physical size, a multiple of 16
  };
  std::vector<Entry> entries;
  std::size_t floats = 0;          ///< size of the block
  std::size_t trained_floats = 0;  ///< the first ones, which have gradients
  std::size_t running_floats = 0;  ///< the last ones, statistics; those in between keep their values

  std::size_t running_begin() const { return floats - running_floats; }
};

/// Appends a span of at least `floats` floats, rounded up to 16 (64 bytes), to the layout: first those that are
/// trained, then the frozen, then the running.
void append(ParamLayout& layout, std::size_t floats, model::ParamRole role = model::ParamRole::trained);

/// Floats [begin, end) of the blocks, all of one parameter.
struct Segment {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  float decay = 0.0f;
  float rate_factor = 1.0f;
};

/// The parameters of floats [begin, end), or the parts of them that lie there, in order. Throws std::logic_error when the
/// table and the layout differ, or the floats are not made of whole lines of 16 of parameters.
std::vector<Segment> segments_of(std::size_t begin, std::size_t end, const model::ParamTable& params,
                                 const ParamLayout& layout);

/// The control block: fp32 values at the head of the gradient block that the all-reduce sums with the first
/// bucket.
///
/// One slot per rank carries facts of single ranks: every other rank adds zero, so the sum is a gather. Behind
/// the slots stand the statistics of the batch, in the order of the layout's running parameters, each rank's
/// divided by the number of ranks and of parts of its batch, so the sum is their mean.
struct ControlLayout {
  /// staleness: of an update that servers make of one push, how many versions were made since that worker had its own.
  enum : std::size_t { loss_sum, correct, samples, stop, trace, staleness, header_floats = 8 };
  enum : std::size_t {
    compute_ms,
    hash_pieces,
    slot_floats = 8
  };  // the hash: four pieces of 16 bits, exact in fp32
  int ranks = 1;
  std::size_t statistics_floats = 0;  ///< ParamLayout::running_floats

  std::size_t slot(int rank) const { return header_floats + static_cast<std::size_t>(rank) * slot_floats; }
  std::size_t slots_floats() const { return slot(ranks) - header_floats; }
  /// Where the statistics begin; a multiple of 16.
  std::size_t statistics() const { return (slot(ranks) + 15) / 16 * 16; }
  /// A multiple of 16.
  std::size_t floats() const { return statistics() + statistics_floats; }
};

/// What a rank may ask of all, as bits of a word of the host; in the control block each has a float of its own, which
/// then says how many ranks ask.
enum Request : int { kStopRequest = 1, kTraceRequest = 2 };

/// Facts of one rank that travel in its slot of the next step's control block; backend memory.
struct RankFacts {
  double started_s = 0.0;  ///< when the control task of the step began
  float compute_ms =
      0.0f;  ///< from there to the end of backward: what this rank took without waiting for others
  std::uint64_t param_hash = 0;  ///< hash_bytes of the parameter block, as the host last put it there
};

/// What a finished step leaves for the host to read; everything is over all ranks.
struct StepRecord {
  std::uint64_t step = 0;      ///< the step these figures are of, from 0
  double cross_entropy = 0.0;  ///< mean over the global batch, or over those of all steps of the replay
  double decay_term = 0.0;
  double correct = 0.0;
  double samples = 0.0;
  double stop_requests = 0.0;   ///< how many ranks have been asked to stop
  double trace_requests = 0.0;  ///< how many ranks have been asked for a trace
  double gradient_norm = 0.0;   ///< of the summed gradient before it is clipped; 0 where it is not
  bool applied =
      false;  ///< false: the loss, its decay term or the norm was not finite; the step does not count
  std::vector<float> slots;  ///< of the control block
};

/// Records kept before they are overwritten; the host reads block n−2 before it launches block n.
constexpr std::uint64_t kRecordRing = 256;
/// Where the record of `step` stands, when a replay takes so many steps and leaves one record, of its last: those of
/// replays in a row stand side by side.
constexpr std::size_t record_place(std::uint64_t step, std::uint64_t steps = 1) {
  return step / steps % kRecordRing;
}

}  // namespace cifar_mpi::engine
