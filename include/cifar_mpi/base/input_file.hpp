#pragma once

#include <string>

#include "cifar_mpi/base/error.hpp"

/// Files that are read. Nothing here waits: pipes and devices are not even opened.
namespace cifar_mpi {

/// Why `path` cannot be read as a file, in the system's words or ours; empty when it can. Only regular files
/// can, also through links: no folder, pipe, socket or device.
std::string why_unreadable(const std::string& path);

/// The whole content of a text file. Throws Error{kind} saying why not, also for more than 1 MiB.
std::string read_text_file(const std::string& path, ErrorKind kind);

}  // namespace cifar_mpi
