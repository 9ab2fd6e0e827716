#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/log.hpp"

namespace cifar_mpi::report {

/// RUN_DIR/trace/step_N.perfetto-trace: written in pieces under a temporary name, which `finish` replaces. Rank 0 only.
///
/// Nothing here throws an Error. If it cannot be written (disk full, folder not writable), there is one
/// warning and no file; training continues. Symbolic links are not followed.
class TraceFile {
 public:
  TraceFile() = default;  ///< writes nothing
  /// In `folder`, RUN_DIR/trace; `step` as log lines count it.
  TraceFile(const DirectoryEntry& folder, std::uint64_t step, const Log& log);

  void append(std::string_view bytes);
  /// Completes the file and returns its path; empty if there is none.
  std::string finish();

 private:
  void give_up(const std::string& reason);

  std::string path_;
  std::string name_;
  Log log_;
  Directory folder_;
  Descriptor file_;
};

}  // namespace cifar_mpi::report
