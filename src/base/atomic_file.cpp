#include "cifar_mpi/base/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/handle.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi {
namespace {

void close_descriptor(int descriptor) { ::close(descriptor); }
using Descriptor = Handle<int, close_descriptor, -1>;

[[noreturn]] void fail(const std::string& path, const char* doing, int error) {
  const char* advice = "check the path and its permissions";
  if (error == ENOSPC || error == EDQUOT) advice = "free some space or write to another file system";
  if (error == EFBIG) advice = "raise the file size limit (ulimit -f)";
  throw Error(ErrorKind::io, concat("cannot write '", path, "': ", doing, " failed with \"",
                                    std::generic_category().message(error), "\"; ", advice));
}

void write_all(int descriptor, const std::string& path, std::span<const std::byte> content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path, "writing", errno);
    content = content.subspan(static_cast<std::size_t>(written));
  }
}

/// Shortened where the ending would make the name longer than file systems allow, 255 bytes.
std::string temporary_name(const std::string& path, int attempt) {
  constexpr std::size_t kLongestStem = 220;
  const std::size_t folder = path.find_last_of('/') + 1;  // 0 when there is none
  return concat(path.substr(0, folder), path.substr(folder, kLongestStem), ".", ::getpid(), "-", attempt,
                ".tmp");
}
constexpr int kAttempts = 1000;

/// A file under a temporary name, removed again unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path) : path_(path) {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      name_ = temporary_name(path, attempt);
      descriptor_ = Descriptor(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (descriptor_ || errno != EEXIST) break;
    }
    if (!descriptor_) {
      const int error = errno;
      name_.clear();
      fail(path_, "creating a temporary file beside it", error);
    }
  }
  ~TemporaryFile() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::span<const std::byte> content) { write_all(descriptor_.get(), path_, content); }

  void rename() {
    finish();
    if (std::rename(name_.c_str(), path_.c_str()) != 0) fail(path_, "renaming the temporary file", errno);
    name_.clear();
  }

  enum class Linked { yes, exists, unsupported };
  Linked link() {
    finish();
    if (::link(name_.c_str(), path_.c_str()) == 0) return Linked::yes;
    const int error = errno;
    // Over a network the answer to a successful call may be lost and its repetition fail.
    struct stat ours {};
    struct stat found {};
    if (::lstat(name_.c_str(), &ours) == 0 && ::lstat(path_.c_str(), &found) == 0 &&
        ours.st_dev == found.st_dev && ours.st_ino == found.st_ino) {
      return Linked::yes;
    }
    if (error == EEXIST) return Linked::exists;
    if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS) return Linked::unsupported;
    fail(path_, "naming it", error);
  }

 private:
  void finish() {
    if (::fsync(descriptor_.get()) != 0) fail(path_, "flushing", errno);
    // Network file systems may report a full quota as late as here.
    if (::close(descriptor_.release()) != 0) fail(path_, "closing", errno);
  }

  std::string path_;
  std::string name_;
  Descriptor descriptor_;
};

void flush_folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::filesystem::path folder = parent.empty() ? "." : parent;
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) return;  // writable but not readable folders exist; the file itself is safe
  // Some file systems cannot flush a folder and say EINVAL.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) fail(path, "flushing its folder", errno);
}

void check_target(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0 || S_ISREG(found.st_mode)) return;
  throw Error(ErrorKind::io,
              concat("cannot write '", path, "': it exists and is not a regular file (",
                     S_ISDIR(found.st_mode) ? "a folder" : "a device, pipe or socket", "); name a file"));
}

/// Where there are no hard links. False when `path` exists. Others may see it before it has all its content.
bool create_in_place(const std::string& path, std::span<const std::byte> content) {
  const Descriptor descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!descriptor && errno == EEXIST) return false;
  if (!descriptor) fail(path, "creating", errno);
  try {
    write_all(descriptor.get(), path, content);
    if (::fsync(descriptor.get()) != 0) fail(path, "flushing", errno);
  } catch (const Error&) {
    ::unlink(path.c_str());
    throw;
  }
  return true;
}

}  // namespace

void require_writable(const std::string& path) {
  check_target(path);
  const TemporaryFile probe(path);
}

void write_atomically(const std::string& path, std::span<const std::byte> content) {
  check_target(path);
  TemporaryFile file(path);
  file.write(content);
  file.rename();
  flush_folder_of(path);
}

bool create_atomically(const std::string& path, std::string_view content) {
  using Linked = TemporaryFile::Linked;
  const auto bytes = std::as_bytes(std::span(content));
  TemporaryFile file(path);
  file.write(bytes);
  const Linked linked = file.link();
  if (linked == Linked::exists) return false;
  if (linked == Linked::unsupported && !create_in_place(path, bytes)) return false;
  flush_folder_of(path);
  return true;
}

void link_atomically(const std::string& link, const std::string& target) {
  std::string name;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    name = temporary_name(link, attempt);
    if (::symlink(target.c_str(), name.c_str()) == 0) break;
    if (errno != EEXIST || attempt + 1 == kAttempts) fail(link, "making a symbolic link beside it", errno);
  }
  if (std::rename(name.c_str(), link.c_str()) != 0) {
    const int error = errno;
    ::unlink(name.c_str());
    fail(link, "renaming the temporary link", error);
  }
  flush_folder_of(link);
}

}  // namespace cifar_mpi
