#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Finds tasks whose declarations lie. Around a task every byte of the watched regions that the task did not
/// declare is filled with 0xFF (NaN as fp32), and what it only reads is copied; afterwards both must be as
/// they were left.
///
/// An undeclared read so gives NaN, an undeclared write throws. All memory it needs is taken in the
/// constructor: as much as the regions have. Regions are host memory and outlive the audit; they may overlap.
class Audit {
 public:
  Audit(const StepProgram& program, std::vector<Bytes> regions);

  void before(TaskId task);
  /// Puts the hidden bytes back. Throws std::logic_error naming task, region and offset when a byte changed.
  void after(TaskId task);

 private:
  struct Watch {
    std::vector<Bytes> hidden;     ///< neither read nor written
    std::vector<Bytes> read_only;  ///< read and not written
  };
  [[noreturn]] void report(TaskId task, const std::byte* where, const char* declared) const;

  std::string program_;
  std::vector<std::string> names_;
  std::vector<Bytes> regions_;
  std::vector<Watch> watches_;  ///< by TaskId
  Buffer shadow_;
};

}  // namespace cifar_mpi::engine
