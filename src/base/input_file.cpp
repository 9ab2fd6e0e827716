#include "cifar_mpi/base/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi {
namespace {

/// The kind of a file that is not a regular one; empty for a regular one.
std::string other_kind(const struct stat& found) {
  if (S_ISREG(found.st_mode)) return {};
  if (S_ISDIR(found.st_mode)) return "it is a folder, not a file";
  if (S_ISFIFO(found.st_mode)) return "it is a pipe, not a file";
  if (S_ISLNK(found.st_mode)) return "it is a symbolic link, which is not followed";
  return "it is a device or socket, not a file";
}

double seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Reads from its beginning until `buffer` is full or the file ends; how many bytes, below 0 when that fails.
ssize_t read_some(int descriptor, char* buffer, std::size_t size, off_t from = 0) {
  std::size_t got = 0;
  while (got < size) {
    const ssize_t n = ::pread(descriptor, buffer + got, size - got, from + static_cast<off_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return n;
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  return static_cast<ssize_t>(got);
}

/// The offset of the next data at or after `from`; negative if only a hole or the end follows. On file
/// systems without holes all is data.
off_t next_data(int descriptor, off_t from) {
  const off_t found = ::lseek(descriptor, from, SEEK_DATA);
  return found < 0 && errno != ENXIO ? from : found;
}

/// The content of a file of at most `most` bytes; empty if the file is larger or reading fails.
std::optional<std::string> read_all(int descriptor, std::size_t most) {
  std::string content;
  for (std::size_t filled = 0; filled <= most;) {
    content.resize(std::min(most + 1, std::max<std::size_t>(4096, 2 * filled)));
    const ssize_t size =
        read_some(descriptor, content.data() + filled, content.size() - filled, static_cast<off_t>(filled));
    if (size < 0) return std::nullopt;
    filled += static_cast<std::size_t>(size);
    if (filled < content.size()) {
      content.resize(filled);
      return content;
    }
  }
  return std::nullopt;
}

}  // namespace

/// Checks the type before opening, so that no device is opened, and again afterwards, because the file may
/// have been exchanged.
InputFile::InputFile(const DirectoryEntry& file, int flags) : path_(file.path()) {
  constexpr int kCarefully = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  struct stat found {};
  const int no_link = (flags & O_NOFOLLOW) != 0 ? AT_SYMLINK_NOFOLLOW : 0;
  bool known = ::fstatat(file.folder(), file.name(), &found, no_link) == 0;
  if (known) problem_ = other_kind(found);
  if (known && problem_.empty()) {
    descriptor_ = open_at(file, kCarefully | flags);
    known = descriptor_ && ::fstat(descriptor_.get(), &found) == 0;
    if (known) problem_ = other_kind(found);
  }
  if (known) return;
  missing_ = errno == ENOENT;
  fault_ = errno != ELOOP || no_link == 0;
  problem_ = fault_ ? last_error() : "it is a symbolic link, which is not followed";
  if (path_.empty()) problem_ = "the name is empty";
}

InputFile::InputFile(const std::string& path) : InputFile(DirectoryEntry(path), 0) {}

InputFile::InputFile(const DirectoryEntry& file) : InputFile(file, O_NOFOLLOW) {}

std::uint64_t InputFile::size() const {
  struct stat found {};
  return descriptor_ && ::fstat(descriptor_.get(), &found) == 0 ? static_cast<std::uint64_t>(found.st_size)
                                                                : 0;
}

bool InputFile::read(std::span<std::byte> content) const {
  errno = 0;
  const ssize_t size = read_some(descriptor_.get(), reinterpret_cast<char*>(content.data()), content.size());
  return size >= 0 && static_cast<std::size_t>(size) == content.size();
}

double InputFile::modified_s() const {
  struct stat found {};
  return descriptor_ && ::fstat(descriptor_.get(), &found) == 0 ? seconds(found.st_mtim) : 0.0;
}

std::string InputFile::fault() const {
  if (!problem_.empty()) return fault_ ? problem_ : std::string();
  std::vector<char> chunk(1 << 20);
  ssize_t size = 0;
  off_t from = 0;
  do {
    from = next_data(descriptor_.get(), from + size);  // a file of holes can be too long to read
    size = from < 0 ? 0 : read_some(descriptor_.get(), chunk.data(), chunk.size(), from);
  } while (size > 0);
  return size < 0 ? last_error() : std::string();
}

std::optional<SmallFile> read_small_file(const DirectoryEntry& entry, std::size_t most) {
  constexpr int kCarefully = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const Descriptor descriptor = open_at(entry, kCarefully);
  struct stat found {};
  const bool there = descriptor ? ::fstat(descriptor.get(), &found) == 0
                                : ::fstatat(entry.folder(), entry.name(), &found, AT_SYMLINK_NOFOLLOW) == 0;
  if (!there) return std::nullopt;
  SmallFile file;
  file.modified_s = seconds(found.st_mtim);
  if (!descriptor || !S_ISREG(found.st_mode)) return file;
  if (auto content = read_all(descriptor.get(), most)) {
    file.content = *std::move(content);
    file.readable = true;
  }
  return file;
}

std::string read_text_file(const std::string& path, ErrorKind kind) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const auto fail = [&](const std::string& why) { throw Error(kind, "cannot read '", path, "': ", why); };
  const InputFile file(path);
  if (!file.problem().empty()) fail(file.problem());
  errno = 0;
  std::optional<std::string> text = read_all(file.descriptor(), kMost);
  if (!text) fail(errno != 0 ? last_error() : "it is larger than 1 MiB");
  return *std::move(text);
}

}  // namespace cifar_mpi
