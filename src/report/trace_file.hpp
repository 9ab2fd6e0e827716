#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cifar_mpi/report/best_effort_file.hpp"

namespace cifar_mpi::report {

/// RUN_DIR/trace/step_N.perfetto-trace: written in pieces under a temporary name, which `finish` replaces. Rank 0 only.
///
/// It is a BestEffortFile that is removed if a part of it cannot be written. Symbolic links are not followed.
class TraceFile {
 public:
  TraceFile() = default;  ///< writes nothing
  /// In `folder`, RUN_DIR/trace; `step` as log lines count it.
  TraceFile(const DirectoryEntry& folder, std::uint64_t step, const Log& log);

  void append(std::string_view bytes);
  /// Completes the file and returns its path; empty if there is none.
  std::string finish();

 private:
  void give_up();

  std::string name_;
  Directory folder_;
  BestEffortFile file_;
};

}  // namespace cifar_mpi::report
