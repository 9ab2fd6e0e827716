#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/input_file.hpp"

namespace cifar_mpi {

/// Replaces the content of a file atomically: after a crash it holds either the old content or all of the
/// new.
///
/// The bytes go to a new file NAME.PID-N.tmp in the same folder (long names shortened), which is flushed to
/// the disk, renamed to the file's name, and the folder is flushed. A symbolic link of that name is replaced.
/// On any error the temporary file is removed; only a killed process leaves one, and it may be deleted. The
/// folder must exist. Throws Error{io} with the path and the system's reason. A file size limit (`ulimit -f`)
/// is such an error only in a process that ignores SIGXFSZ.
void write_atomically(const DirectoryEntry& file, std::span<const std::byte> content);
inline void write_atomically(const DirectoryEntry& file, std::string_view content) {
  write_atomically(file, std::as_bytes(std::span(content)));
}

/// Throws Error{io} if write_atomically could not create its temporary file; creates and removes one to find out.
void require_writable(const DirectoryEntry& file);

/// A result may only replace its like, because `option` could name another file by mistake. Throws Error{usage}
/// if `file` can be opened, is not empty and does not begin with `begins`; `what` completes "is not".
void require_like_or_nothing(const InputFile& file, std::string_view begins, std::string_view what,
                             std::string_view option);
/// Throws the error of require_like_or_nothing.
[[noreturn]] void refuse_to_replace(const InputFile& file, std::string_view what, std::string_view option);

/// Like write_atomically, for a file that must not exist: of several callers, on any machines, one gets true; for the
/// others the file stays as it is. On file systems without hard links the content may be seen while it is
/// written.
bool create_atomically(const DirectoryEntry& file, std::string_view content);

/// Makes `link` a symbolic link to `target`, atomically replacing an existing file or link of that name.
void link_atomically(const DirectoryEntry& link, const std::string& target);

}  // namespace cifar_mpi
