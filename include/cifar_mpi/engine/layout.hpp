#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/model/param_table.hpp"

/// The flat blocks of a run: parameters, gradients and EMA have one layout, in the order of the ParamTable.
namespace cifar_mpi::engine {

/// The place of each parameter in a flat fp32 block; entry i belongs to ParamTable[i]. The backend chooses
/// the order inside a span; padding inside or after it is zero and stays zero.
struct ParamLayout {
  struct Entry {
    std::size_t offset = 0;  ///< floats from the start of the block, a multiple of 16
    std::size_t floats = 0;  ///< physical size, a multiple of 16
  };
  std::vector<Entry> entries;
  std::size_t floats = 0;          ///< size of the block
  std::size_t trained_floats = 0;  ///< the leading part, which has gradients
  std::size_t running_floats = 0;  ///< the trailing part, statistics; floats between both keep their values

  std::size_t running_begin() const { return floats - running_floats; }
};

/// Appends a span of at least `floats` floats, rounded up to 16 (64 bytes), to the layout. Trained parameters
/// come first, then frozen, then running ones.
void append(ParamLayout& layout, std::size_t floats, model::ParamRole role = model::ParamRole::trained);

/// Floats [begin, end) of the blocks, all of one parameter.
struct Segment {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  float decay = 0.0f;
  float rate_factor = 1.0f;
  std::uint64_t steps = 0;     ///< as in model::Param
  bool hidden_matrix = false;  ///< model::rate_role
};

/// The learning rate of a parameter in step t, from 0; a rate of 0 leaves it as it is, with every optimizer.
constexpr float rate_of(const Segment& segment, float learning_rate, std::uint64_t step) {
  return segment.steps != 0 && step >= segment.steps ? 0.0f : learning_rate * segment.rate_factor;
}

/// The parameters of floats [begin, end), or their parts inside it, in order. Throws std::logic_error when
/// the table and the layout differ, or when the range does not consist of whole 16-float lines of parameters.
std::vector<Segment> segments_of(std::size_t begin, std::size_t end, const model::ParamTable& params,
                                 const ParamLayout& layout);

/// The control block: fp32 values at the head of the gradient block, which all-reduce sums with the first
/// bucket.
///
/// It has one slot of facts per rank; all other ranks add zero, so the sum is a gather. After the slots come
/// the batch's statistics, in the order of the layout's running parameters. Each rank divides its own by the
/// number of ranks and of parts of its batch, so the sum is their mean.
struct ControlLayout {
  /// staleness: for a server's update from one push, the number of versions since the worker fetched its own.
  enum : std::size_t { loss_sum, correct, samples, stop, trace, save, staleness, header_floats = 8 };
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

/// Requests of a rank to all ranks, as bits of a host word. In the control block each has a float, which
/// counts the ranks that ask.
enum Request : int { kStopRequest = 1, kTraceRequest = 2, kSaveRequest = 4 };

/// Facts of one rank that travel in its slot of the next step's control block; backend memory.
struct RankFacts {
  double started_s = 0.0;        ///< when the control task of the step began
  float compute_ms = 0.0f;       ///< time from there to the end of backward, without waits for other ranks
  std::uint64_t param_hash = 0;  ///< hash_bytes of the parameter block, as last stored by the host
};

/// The result of a finished step for the host; everything is over all ranks.
struct StepRecord {
  std::uint64_t step = 0;  ///< counted from 0
  double cross_entropy =
      0.0;  ///< mean over the global batch, or over the global batches of all steps of the replay
  double decay_term = 0.0;
  double correct = 0.0;
  double samples = 0.0;
  double stop_requests = 0.0;   ///< how many ranks have been asked to stop
  double trace_requests = 0.0;  ///< how many ranks have been asked for a trace
  double save_requests = 0.0;   ///< how many ranks ask for a checkpoint
  double gradient_norm = 0.0;   ///< of the summed gradient before clipping; 0 without clipping
  bool applied =
      false;  ///< false: the loss, its decay term or the norm was not finite; the step does not count
  std::vector<float> slots;  ///< of the control block
};

/// Records before the first is overwritten; the host reads block n−2 before it launches block n.
constexpr std::uint64_t kRecordRing = 256;
/// Index of the record of `step` when each replay takes `steps` steps and leaves one record, that
/// of its last step; the records of successive replays are adjacent.
constexpr std::size_t record_place(std::uint64_t step, std::uint64_t steps = 1) {
  return step / steps % kRecordRing;
}

}  // namespace cifar_mpi::engine
