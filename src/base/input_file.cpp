#include "cifar_mpi/base/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi {

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
