#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/run_fingerprint.hpp"
#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/model/param_table.hpp"
#include "cifar_mpi/optim/optimizer.hpp"
#include "cifar_mpi/optim/state.hpp"

/// The checkpoint file: self-describing HDF5, readable with `h5dump`.
namespace cifar_mpi::run {

struct NamedTensor {
  std::string name;  ///< "conv1/weights"
  Shape shape;
  std::string dims;  ///< "[height, width, in, out]"
  std::vector<float> values;
  bool running = false;  ///< a running statistic: has a group of its own in the file
};

/// The item of the fingerprint that holds the run's length, if its steps depend on it.
inline constexpr const char* kLength = "length in steps";

/// The position and the identity of a run; equal for two runs that did the same work.
struct Progress {
  std::uint64_t step = 0;  ///< completed steps; also the position in the sample order, except with `batches`
  double epoch = 0.0;
  std::uint64_t samples_seen = 0;  ///< over all ranks: step · global batch
  /// With partial aggregation: the batches that each worker has computed; else empty.
  std::vector<std::uint64_t> batches;
  std::uint64_t seed = 0;
  RunFingerprint identity;  ///< must match on resume
  RunFingerprint
      resolved;  ///< chosen at start and affects bits: adopted on resume unless options override it
};

/// Where a checkpoint came from; never compared.
struct Provenance {
  int ranks = 0;
  std::uint64_t global_batch = 0;
  double learning_rate = 0.0;
  std::string learning_rate_rule;
  std::string precision;
  std::string backend;
  std::string kernels;  ///< the tower's plan, one choice per line
  std::string configuration;
  std::string git_revision;
  std::string time;
  std::optional<double> test_accuracy;  ///< of the EMA weights
  int views = 1;                        ///< of each test image in evaluations; 0: unknown (older files)
  std::string initialized_from;         ///< the checkpoint whose weights the run began with; empty: none
  std::string changes;  ///< options that changed on resume: "step 500: --lr 0.1 -> 0.01", one resume per line
  std::string self_check;  ///< of the device: whether it passed, when, and on what; empty: unknown
};

/// The tensors of each row that a run has (optim::state_rows); others are empty. TensorFlow's names and
/// shapes, in the order of the ParamTable.
class StateTensors {
 public:
  std::vector<NamedTensor>& operator[](optim::StateRole role) {
    return rows_[static_cast<std::size_t>(role)];
  }
  const std::vector<NamedTensor>& operator[](optim::StateRole role) const {
    return rows_[static_cast<std::size_t>(role)];
  }

 private:
  std::array<std::vector<NamedTensor>, optim::kStateRoles> rows_;
};

/// A tensor of the parameter's name and shape, filled with zeros.
NamedTensor zero_tensor(const model::Param& param);

/// The initial state of a run: the initial weights, or zeros for rows that begin with zeros.
StateTensors initial_state(const std::vector<optim::StateRow>& rows, const std::vector<NamedTensor>& initial);

struct Checkpoint {
  StateTensors state;
  optim::OptimizerSpec optimizer;  ///< with the next two it decides which rows exist
  bool outer_momentum = false;
  bool slow = false;
  Progress progress;
  Provenance provenance;
};

/// A 64-bit hash of the groups /ema, /model, /running and /running_ema, those of the optimizer's rows, of the
/// outer momentum and of the slow weights, if they exist, /optimizer and /progress: equal for two runs that did
/// the same work.
///
/// Their data sets and attributes are sorted by key, which is PATH for a data set and PATH@NAME for an
/// attribute; for each, hash_bytes(key) and then hash_bytes(value) are appended as 8 bytes, and the result is
/// hash_bytes of all of it. A value is its float32s in row-major order, its 8-byte number, or its text; for a
/// list of texts, each text and a line feed. All little-endian.
///
/// It detects damage, not forgery.
std::uint64_t content_hash(const Checkpoint& checkpoint);

/// Writes under a temporary name, flushes to disk, renames: `file` appears complete or not at all. The root
/// attribute `content_hash` holds that hash in 16 hexadecimal digits. Throws Error{io}.
void write_checkpoint(const DirectoryEntry& file, const Checkpoint& checkpoint);

/// Throws Error{checkpoint} if the file is missing, damaged or not a checkpoint; also if the content does
/// not match the file's `content_hash` or has no tensors or no identity. Reads versions 2 (only sgd) and 3.
Checkpoint read_checkpoint(const InputFile& file);

/// For a file that the user named: throws Error{checkpoint}, with what to name instead, if it cannot be opened or is none of
/// these versions.
void require_checkpoint(const InputFile& named);

/// The test accuracy in a checkpoint's provenance; empty if it has none, has one of another number of `views`
/// (0: any will do), or cannot be read.
std::optional<double> recorded_test_accuracy(const InputFile& file, int views = 0);

/// Copies of `tensors` in the order of `params`, which end with the running statistics (an optimizer's rows have none).
/// Throws Error{checkpoint} naming `path` and the first parameter that is missing, extra or of another shape.
std::vector<NamedTensor> match_tensors(std::vector<NamedTensor> tensors, const model::ParamTable& params,
                                       const std::string& path, bool with_running = true);

}  // namespace cifar_mpi::run
