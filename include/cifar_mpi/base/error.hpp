#pragma once

#include <stdexcept>

#include "cifar_mpi/base/text.hpp"

/// The kinds of errors and their exit codes.
namespace cifar_mpi {

/// The value is the exit code. The table in src/run/README.md repeats it for users.
enum class ErrorKind : int {
  internal = 1,    ///< a bug, or an unexpected exception
  usage = 2,       ///< an invalid option or combination of options
  data = 3,        ///< the dataset is missing, damaged, or does not fit the model
  checkpoint = 4,  ///< a checkpoint or run directory is missing, damaged, or of another run
  io = 5,          ///< a file could not be written (permissions, disk full, quota)
  device = 6,      ///< the requested device, precision or memory is not available
  comm = 7,        ///< a peer was lost or MPI failed
  diverged = 8,    ///< the loss, a weight or an average became NaN or infinite
  desync = 9,      ///< the parameters of the ranks differ
  launch = 10,     ///< the launcher announced N ranks, but this binary sees a world of one
  stopped = 75,    ///< stopped on request; a rerun resumes (EX_TEMPFAIL, for SLURM's RequeueExit=75)
};

constexpr int exit_code(ErrorKind kind) { return static_cast<int>(kind); }

/// One sentence for the user: what was expected, what was found, in which file or rank, and what to do.
class Error : public std::runtime_error {
 public:
  /// Concatenates `parts` into the text.
  template <class... Parts>
  requires(sizeof...(Parts) > 0) Error(ErrorKind kind, const Parts&... parts)
      : std::runtime_error(concat(parts...)), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace cifar_mpi
