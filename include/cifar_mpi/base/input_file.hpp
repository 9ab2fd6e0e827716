#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/error.hpp"

/// Files for reading. Nothing here waits for a pipe or a device.
namespace cifar_mpi {

/// A regular file that was opened for reading, or why it could not be.
class InputFile {
 public:
  /// A file that the user named: a link is followed.
  InputFile(const std::string& path);  // NOLINT(google-explicit-constructor): where a file is asked for
  /// A file in a folder where others may write: a link is not followed.
  InputFile(const DirectoryEntry& file);  // NOLINT(google-explicit-constructor)
  /// A file that cannot be opened because of `problem`.
  InputFile(std::string path, std::string problem)
      : path_(std::move(path)), problem_(std::move(problem)), fault_(true) {}

  const std::string& path() const { return path_; }  ///< for people
  int descriptor() const { return descriptor_.get(); }
  /// Why it cannot be read; empty if it can.
  const std::string& problem() const { return problem_; }
  /// In bytes; 0 if it cannot be opened.
  std::uint64_t size() const;
  /// Fills `content` from the beginning of the file; false, with errno, when that fails (0: the file is shorter).
  bool read(std::span<std::byte> content) const;
  /// Modification time by the clock of its file system; 0 if it cannot be opened.
  double modified_s() const;
  /// Whether the file does not exist.
  bool missing() const { return missing_; }
  /// The system's error on opening the file or on reading it to its end, as opposed to an error in its
  /// content. Empty if there is none, or if the file is not a regular one.
  std::string fault() const;

 private:
  InputFile(const DirectoryEntry& file, int flags);

  std::string path_;
  Descriptor descriptor_;
  std::string problem_;
  bool missing_ = false;
  bool fault_ = false;  ///< `problem_` is the system's error
};

/// The content and the modification time of a small file in a folder where others may write.
struct SmallFile {
  std::string content;      ///< empty when it is not readable
  bool readable = false;    ///< a regular file, not a link, of at most `most` bytes
  double modified_s = 0.0;  ///< by the clock of its file system, also of what is not readable
};

/// Empty if the file does not exist. Follows no link and does not block. Opens the file before it reads its
/// attributes, because network file systems then ask the server instead of their cache.
std::optional<SmallFile> read_small_file(const DirectoryEntry& file, std::size_t most = 4096);

/// The whole content of a text file. Throws Error{kind} saying why not, also for more than 1 MiB.
std::string read_text_file(const std::string& path, ErrorKind kind);

}  // namespace cifar_mpi
