#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/error.hpp"

/// Files that are read. Nothing here waits for a pipe or a device.
namespace cifar_mpi {

/// A regular file that was opened for reading, or why it could not be.
class InputFile {
 public:
  /// A file that the user named: a link is followed.
  InputFile(const std::string& path);  // NOLINT(google-explicit-constructor): where a file is asked for
  /// A file in a folder where others may write: a link is not followed.
  InputFile(const DirectoryEntry& file);  // NOLINT(google-explicit-constructor)
  /// One that cannot even be looked for.
  InputFile(std::string path, std::string problem)
      : path_(std::move(path)), problem_(std::move(problem)), fault_(true) {}

  const std::string& path() const { return path_; }  ///< for people
  int descriptor() const { return descriptor_.get(); }
  /// Why it cannot be read, in the system's words or ours; empty when it can.
  const std::string& problem() const { return problem_; }
  /// In bytes; 0 where it cannot be opened.
  std::uint64_t size() const;
  /// Fills `content` from the beginning of the file; false, with errno, when that fails (0: the file is shorter).
  bool read(std::span<std::byte> content) const;
  /// When it was written, by the clock of its file system; 0 where it cannot be opened.
  double modified_s() const;
  /// Nothing bears that name.
  bool missing() const { return missing_; }
  /// Why the system cannot open it or read it to its end, which says nothing of what stands in it; empty when it can,
  /// or when it is no regular file.
  std::string fault() const;

 private:
  InputFile(const DirectoryEntry& file, int flags);

  std::string path_;
  Descriptor descriptor_;
  std::string problem_;
  bool missing_ = false;
  bool fault_ = false;  ///< `problem_` is the system's
};

/// A small file in a folder where others may write too, and when it was written.
struct SmallFile {
  std::string content;      ///< empty when it is not readable
  bool readable = false;    ///< a regular file, not a link, of at most `most` bytes
  double modified_s = 0.0;  ///< by the clock of its file system, also of what is not readable
};

/// Nothing when there is nothing of that name. Follows no link and waits for nothing; opens before it looks,
/// because network file systems then ask the server instead of believing what they remember.
std::optional<SmallFile> read_small_file(const DirectoryEntry& file, std::size_t most = 4096);

/// The whole content of a text file. Throws Error{kind} saying why not, also for more than 1 MiB.
std::string read_text_file(const std::string& path, ErrorKind kind);

}  // namespace cifar_mpi
