#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

/// Preloaded into the ranks of a test: makes files behave as on a network file system of a cluster.
///
///   - modification times are whole seconds, and $NETWORK_FILES_SHIFT_S seconds away from this machine's clock
///   - each process's first attempt to open a file below $NETWORK_FILES fails: ESTALE
///   - there are no hard links and no unnamed files: EOPNOTSUPP
///
/// A process reports the first occurrence of each on standard error.
namespace {

template <class Call>
Call* real(const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}

void report_first(std::atomic_flag& reported, const char* line) {
  if (reported.test_and_set()) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, std::strlen(line));
}

/// The path of `name` in an opened folder.
std::string path_of(int folder, const char* name) {
  if (name[0] == '/' || folder == AT_FDCWD) return name;
  char path[PATH_MAX] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(folder);
  if (::readlink(link.c_str(), path, sizeof path - 1) < 0) return name;
  return std::string(path) + '/' + name;
}

bool is_stale(int folder, const char* name) {
  static const char* const below = std::getenv("NETWORK_FILES");
  static std::mutex mutex;
  static std::set<std::string> opened;
  static std::atomic_flag reported;
  const std::string path = path_of(folder, name);
  if (below == nullptr || path.rfind(below, 0) != 0) return false;
  const std::scoped_lock lock(mutex);
  if (!opened.insert(path).second) return false;
  report_first(reported, "network files: ESTALE\n");
  errno = ESTALE;
  return true;
}

bool lacks_name(int flags) {
  static std::atomic_flag reported;
  if ((flags & O_TMPFILE) != O_TMPFILE) return false;
  report_first(reported, "network files: no O_TMPFILE\n");
  errno = EOPNOTSUPP;
  return true;
}

int without_links() {
  static std::atomic_flag reported;
  report_first(reported, "network files: no links\n");
  errno = EOPNOTSUPP;
  return -1;
}

int change_times(int status, struct stat* found) {
  static const char* const text = std::getenv("NETWORK_FILES_SHIFT_S");
  static std::atomic_flag reported;
  if (status != 0 || text == nullptr) return status;
  report_first(reported, "network files: coarse times\n");
  found->st_mtim.tv_sec += std::atol(text);
  found->st_mtim.tv_nsec = 0;
  return status;
}

}  // namespace

extern "C" {

int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode =
      (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  static auto* const call = real<int(int, const char*, int, ...)>("openat");
  return lacks_name(flags) || is_stale(folder, name) ? -1 : call(folder, name, flags, mode);
}

int open(const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode =
      (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  static auto* const call = real<int(const char*, int, ...)>("open");
  return lacks_name(flags) || is_stale(AT_FDCWD, name) ? -1 : call(name, flags, mode);
}

int link(const char*, const char*) noexcept { return without_links(); }
int linkat(int, const char*, int, const char*, int) noexcept { return without_links(); }

int fstat(int file, struct stat* found) noexcept {
  static auto* const call = real<int(int, struct stat*)>("fstat");
  return change_times(call(file, found), found);
}

int fstatat(int folder, const char* name, struct stat* found, int flags) noexcept {
  static auto* const call = real<int(int, const char*, struct stat*, int)>("fstatat");
  return change_times(call(folder, name, found, flags), found);
}
}
