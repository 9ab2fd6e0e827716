#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "cifar_mpi/base/error.hpp"

/// Files that are read. Nothing here waits: pipes and devices are not even opened.
namespace cifar_mpi {

/// Why `path` cannot be read as a file, in the system's words or ours; empty when it can. Only regular files
/// can, also through links: no folder, pipe, socket or device.
std::string why_unreadable(const std::string& path);

/// A small file in a folder where others may write too, and when it was written.
struct SmallFile {
  std::string content;      ///< empty when it is not readable
  bool readable = false;    ///< a regular file, not a link, of at most `most` bytes
  double modified_s = 0.0;  ///< by the clock of its file system, also of what is not readable
};

/// Nothing when there is nothing at `path`. Follows no link and waits for nothing; opens before it looks,
/// because network file systems then ask the server instead of believing what they remember.
std::optional<SmallFile> read_small_file(const std::string& path, std::size_t most = 4096);

/// The whole content of a text file. Throws Error{kind} saying why not, also for more than 1 MiB.
std::string read_text_file(const std::string& path, ErrorKind kind);

}  // namespace cifar_mpi
