#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/log.hpp"

namespace cifar_mpi::report {

/// A file that training can do without. Nothing here throws: the first write that fails gives one warning, and training
/// continues.
///
/// When `write` returns, the operating system has the piece. A piece that does not fit on the disk is removed
/// again, so the file always ends with a whole piece.
class BestEffortFile {
 public:
  BestEffortFile() = default;  ///< writes nothing
  /// The warning names `path`, and `loss`: what the run lacks without the file.
  BestEffortFile(std::string path, std::string loss, const Log& log)
      : path_(std::move(path)), loss_(std::move(loss)), log_(log) {}

  /// Pieces go to the end of this file, which is opened with O_APPEND.
  void open(Descriptor file, const std::string& path);
  /// Whether the piece is in the file.
  bool write(std::string_view piece);
  void warn(const std::string& reason);
  void close() { file_.reset(); }
  explicit operator bool() const { return static_cast<bool>(file_); }
  const std::string& path() const { return path_; }
  bool empty() const { return size_ == 0; }

 private:
  std::string path_;
  std::string loss_;
  Log log_;
  Descriptor file_;
  std::int64_t size_ = 0;  ///< of the whole pieces in the file
  bool warned_ = false;
};

}  // namespace cifar_mpi::report
