#include "report/trace_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::report {
namespace {

constexpr std::string_view kUnfinished = ".tmp";

}  // namespace

TraceFile::TraceFile(const DirectoryEntry& folder, std::uint64_t step, const Log& log)
    : path_(concat(folder.path(), "/step_", step, ".perfetto-trace")), log_(log) {
  try {
    folder_ = Directory::make(folder);
  } catch (const Error& error) {
    give_up(error.what());
    return;
  }
  name_ = concat("step_", step, ".perfetto-trace");
  const DirectoryEntry unfinished = folder_ / concat(name_, kUnfinished);
  // A file that a killed start left. Existing files are never opened: they might be links or pipes.
  remove_file(unfinished);
  const int how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  file_ = open_at(unfinished, how);
  if (!file_) give_up(last_error());
}

void TraceFile::append(std::string_view bytes) {
  while (file_ && !bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      give_up(written < 0 ? last_error() : "the disk is full");
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string TraceFile::finish() {
  if (!file_) return {};
  file_.reset();
  const DirectoryEntry unfinished = folder_ / concat(name_, kUnfinished);
  if (::renameat(unfinished.folder(), unfinished.name(), unfinished.folder(), name_.c_str()) == 0)
    return path_;
  give_up(last_error());
  return {};
}

void TraceFile::give_up(const std::string& reason) {
  file_.reset();
  if (folder_) remove_file(folder_ / concat(name_, kUnfinished));
  log_.warn(concat("cannot write ", path_, ": ", reason, "; training continues without that trace"));
}

}  // namespace cifar_mpi::report
