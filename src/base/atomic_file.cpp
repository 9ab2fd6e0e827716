#include "cifar_mpi/base/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi {
namespace {

[[noreturn]] void fail(const DirectoryEntry& file, const char* doing, int error) {
  const char* advice = "check the path and its permissions";
  if (error == ENOSPC || error == EDQUOT) advice = "free some space or write to another file system";
  if (error == EFBIG) advice = "raise the file size limit (ulimit -f)";
  if (error == ENOENT) advice = "make its folder first, or name another file";
  throw Error(ErrorKind::io, "cannot write '", file.path(), "': ", doing, " failed with \"",
              std::generic_category().message(error), "\"; ", advice);
}

void write_all(int descriptor, const DirectoryEntry& file, std::span<const std::byte> content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(file, "writing", errno);
    content = content.subspan(static_cast<std::size_t>(written));
  }
}

/// Shortened where the ending would make the name longer than file systems allow, 255 bytes.
std::string temporary_name(const DirectoryEntry& file, int attempt) {
  constexpr std::size_t kLongestStem = 220;
  const std::string name = file.name();
  const std::size_t folder = name.find_last_of('/') + 1;  // of a path; 0 when there is none
  return concat(name.substr(0, folder), name.substr(folder, kLongestStem), ".", ::getpid(), "-", attempt,
                ".tmp");
}
constexpr int kAttempts = 1000;

/// A file under a temporary name, removed again unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const DirectoryEntry& file) : file_(file) {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      name_ = temporary_name(file_, attempt);
      descriptor_ = create(name_.c_str());
      if (descriptor_ || errno != EEXIST) break;
    }
    if (!descriptor_) {
      const int error = errno;
      name_.clear();
      fail(file_, "creating a temporary file beside it", error);
    }
  }
  ~TemporaryFile() {
    if (!name_.empty()) ::unlinkat(file_.folder(), name_.c_str(), 0);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::span<const std::byte> content) { write_all(descriptor_.get(), file_, content); }

  void rename() {
    finish();
    if (::renameat(file_.folder(), name_.c_str(), file_.folder(), file_.name()) != 0)
      fail(file_, "renaming the temporary file", errno);
    name_.clear();
  }

  enum class Linked { yes, exists, unsupported };
  Linked link() {
    finish();
    if (::linkat(file_.folder(), name_.c_str(), file_.folder(), file_.name(), 0) == 0) return Linked::yes;
    const int error = errno;
    // Over a network the answer to a successful call may be lost and its repetition fail.
    struct stat ours {};
    struct stat found {};
    if (look_at(name_.c_str(), ours) && look_at(file_.name(), found) && ours.st_dev == found.st_dev &&
        ours.st_ino == found.st_ino) {
      return Linked::yes;
    }
    if (error == EEXIST) return Linked::exists;
    if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS) return Linked::unsupported;
    fail(file_, "naming it", error);
  }

  /// Where there are no hard links. False when the file exists. Others may see it before it has all its content.
  bool create_in_place(std::span<const std::byte> content) const {
    const Descriptor descriptor = create(file_.name());
    if (!descriptor && errno == EEXIST) return false;
    if (!descriptor) fail(file_, "creating", errno);
    try {
      write_all(descriptor.get(), file_, content);
      if (::fsync(descriptor.get()) != 0) fail(file_, "flushing", errno);
    } catch (const Error&) {
      remove_file(file_);
      throw;
    }
    return true;
  }

 private:
  Descriptor create(const char* name) const {
    return open_at(file_.folder(), name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
  }
  bool look_at(const char* name, struct stat& found) const {
    return ::fstatat(file_.folder(), name, &found, AT_SYMLINK_NOFOLLOW) == 0;
  }
  void finish() {
    if (::fsync(descriptor_.get()) != 0) fail(file_, "flushing", errno);
    // Network file systems may report a full quota as late as here.
    if (::close(descriptor_.release()) != 0) fail(file_, "closing", errno);
  }

  const DirectoryEntry& file_;
  std::string name_;
  Descriptor descriptor_;
};

void flush_folder_of(const DirectoryEntry& file) {
  const std::string name = file.name();
  const std::size_t folder = name.find_last_of('/') + 1;
  const std::string parent = folder == 0 ? "." : name.substr(0, folder);
  const Descriptor descriptor = open_at(file.folder(), parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (!descriptor) return;  // writable but not readable folders exist; the file itself is safe
  // Some file systems cannot flush a folder and say EINVAL.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) fail(file, "flushing its folder", errno);
}

void check_target(const DirectoryEntry& file) {
  struct stat found {};
  if (::fstatat(file.folder(), file.name(), &found, AT_SYMLINK_NOFOLLOW) != 0 || S_ISREG(found.st_mode) ||
      S_ISLNK(found.st_mode))
    return;
  throw Error(ErrorKind::io, "cannot write '", file.path(), "': it exists and is not a regular file (",
              S_ISDIR(found.st_mode) ? "a folder" : "a device, pipe or socket", "); name a file");
}

}  // namespace

void require_writable(const DirectoryEntry& file) {
  check_target(file);
  const TemporaryFile probe(file);
}

void require_like_or_nothing(const InputFile& file, std::string_view begins, std::string_view what,
                             std::string_view option) {
  std::string head(begins.size(), '\0');
  if (file.size() == 0 || (file.read(std::as_writable_bytes(std::span(head))) && head == begins)) return;
  refuse_to_replace(file, what, option);
}

void refuse_to_replace(const InputFile& file, std::string_view what, std::string_view option) {
  throw Error(ErrorKind::usage, file.path(), " exists and is not ", what, "; give another name with ", option,
              ", or remove it");
}

void write_atomically(const DirectoryEntry& file, std::span<const std::byte> content) {
  check_target(file);
  TemporaryFile temporary(file);
  temporary.write(content);
  temporary.rename();
  flush_folder_of(file);
}

bool create_atomically(const DirectoryEntry& file, std::string_view content) {
  using Linked = TemporaryFile::Linked;
  const auto bytes = std::as_bytes(std::span(content));
  TemporaryFile temporary(file);
  temporary.write(bytes);
  const Linked linked = temporary.link();
  if (linked == Linked::exists) return false;
  if (linked == Linked::unsupported && !temporary.create_in_place(bytes)) return false;
  flush_folder_of(file);
  return true;
}

void link_atomically(const DirectoryEntry& link, const std::string& target) {
  std::string name;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    name = temporary_name(link, attempt);
    if (::symlinkat(target.c_str(), link.folder(), name.c_str()) == 0) break;
    if (errno != EEXIST || attempt + 1 == kAttempts) fail(link, "making a symbolic link beside it", errno);
  }
  if (::renameat(link.folder(), name.c_str(), link.folder(), link.name()) != 0) {
    const int error = errno;
    ::unlinkat(link.folder(), name.c_str(), 0);
    fail(link, "renaming the temporary link", error);
  }
  flush_folder_of(link);
}

}  // namespace cifar_mpi
