#include "cifar_mpi/base/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "cifar_mpi/base/handle.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi {
namespace {

void close_descriptor(int descriptor) { ::close(descriptor); }

}  // namespace

std::string why_unreadable(const std::string& path) {
  const auto reason = [] { return std::generic_category().message(errno); };
  if (path.empty()) return "the name is empty";
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return reason();
  if (S_ISDIR(found.st_mode)) return "it is a folder, not a file";
  if (S_ISFIFO(found.st_mode)) return "it is a pipe, not a file";
  if (!S_ISREG(found.st_mode)) return "it is a device or socket, not a file";
  // Opened rather than asked with access(), which network file systems answer wrongly; without waiting,
  // should it have become a pipe.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (descriptor < 0) return reason();
  ::close(descriptor);
  return {};
}

std::optional<SmallFile> read_small_file(const std::string& path, std::size_t most) {
  constexpr int kCarefully = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const Handle<int, close_descriptor, -1> descriptor(::open(path.c_str(), kCarefully));
  struct stat found {};
  const bool there = descriptor ? ::fstat(descriptor.get(), &found) == 0 : ::lstat(path.c_str(), &found) == 0;
  if (!there) return std::nullopt;
  SmallFile file;
  file.modified_s =
      static_cast<double>(found.st_mtim.tv_sec) + 1e-9 * static_cast<double>(found.st_mtim.tv_nsec);
  if (!descriptor || !S_ISREG(found.st_mode)) return file;
  std::string content(most + 1, '\0');
  std::size_t size = 0;
  while (size <= most) {
    const ssize_t got = ::read(descriptor.get(), content.data() + size, content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file;
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > most) return file;
  content.resize(size);
  file.content = std::move(content);
  file.readable = true;
  return file;
}

std::string read_text_file(const std::string& path, ErrorKind kind) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const auto fail = [&](const std::string& why) {
    throw Error(kind, concat("cannot read '", path, "': ", why));
  };
  if (const std::string why = why_unreadable(path); !why.empty()) fail(why);
  std::ifstream file(path, std::ios::binary);
  std::string text(kMost + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || !file.eof()) fail(file.bad() ? "reading failed" : "it is larger than 1 MiB");
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace cifar_mpi
