#include "report/trace_file.hpp"

#include <fcntl.h>

#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::report {
namespace {

constexpr std::string_view kUnfinished = ".tmp";

}  // namespace

TraceFile::TraceFile(const DirectoryEntry& folder, std::uint64_t step, const Log& log)
    : name_(concat("step_", step, ".perfetto-trace")),
      file_(concat(folder.path(), "/", name_), "without that trace", log) {
  try {
    folder_ = Directory::make(folder);
  } catch (const Error& error) {
    file_.warn(error.what());
    return;
  }
  const DirectoryEntry unfinished = folder_ / concat(name_, kUnfinished);
  // A file that a killed start left. Existing files are never opened: they might be links or pipes.
  remove_file(unfinished);
  const int how = O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  Descriptor made = open_at(unfinished, how);
  made ? file_.open(std::move(made), file_.path()) : file_.warn(last_error());
}

void TraceFile::append(std::string_view bytes) {
  if (file_ && !file_.write(bytes)) give_up();
}

std::string TraceFile::finish() {
  if (!file_) return {};
  file_.close();
  const DirectoryEntry unfinished = folder_ / concat(name_, kUnfinished);
  if (::renameat(unfinished.folder(), unfinished.name(), unfinished.folder(), name_.c_str()) == 0)
    return file_.path();
  file_.warn(last_error());
  give_up();
  return {};
}

void TraceFile::give_up() {
  file_.close();
  remove_file(folder_ / concat(name_, kUnfinished));
}

}  // namespace cifar_mpi::report
