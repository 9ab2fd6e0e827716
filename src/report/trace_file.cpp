#include "report/trace_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::report {
namespace {

constexpr std::string_view kUnfinished = ".tmp";

}  // namespace

TraceFile::TraceFile(const std::string& run_dir, std::uint64_t step, const Log& log)
    : name_(concat("step_", step, ".perfetto-trace")), log_(log) {
  path_ = concat(run_dir, "/trace/", name_);
  std::string why;
  folder_ = open_folder(run_dir + "/trace", why);
  if (!folder_) {
    give_up(why);
    return;
  }
  const std::string unfinished = concat(name_, kUnfinished);
  // What an earlier start was killed at. No file that exists is written to: it might be a link, or a pipe.
  ::unlinkat(folder_.get(), unfinished.c_str(), 0);
  const int how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  file_ = Descriptor(::openat(folder_.get(), unfinished.c_str(), how, 0666));
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
  const std::string unfinished = concat(name_, kUnfinished);
  if (::renameat(folder_.get(), unfinished.c_str(), folder_.get(), name_.c_str()) == 0) return path_;
  give_up(last_error());
  return {};
}

void TraceFile::give_up(const std::string& reason) {
  file_.reset();
  if (folder_) ::unlinkat(folder_.get(), concat(name_, kUnfinished).c_str(), 0);
  log_.warn(concat("cannot write ", path_, ": ", reason, "; training goes on without that trace"));
}

}  // namespace cifar_mpi::report
