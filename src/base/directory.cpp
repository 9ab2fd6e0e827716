#include "cifar_mpi/base/directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi {
namespace {

/// Suffices to reach entries, and opens folders that are writable but not readable.
constexpr int kFolder = O_PATH | O_DIRECTORY | O_CLOEXEC;

std::optional<struct stat> look_at(int folder, const char* name) {
  struct stat found {};
  if (::fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return found;
}

std::string without_slashes_at_end(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

void close_descriptor(int descriptor) { ::close(descriptor); }

std::string last_error() { return std::generic_category().message(errno); }

DirectoryEntry::DirectoryEntry(std::string path) : folder_(AT_FDCWD), name_(path), path_(std::move(path)) {}

Directory::Directory(int at, const std::string& name, int flags, std::string path)
    : descriptor_(open_at(at, name.c_str(), flags)), path_(std::move(path)) {
  if (descriptor_) return;
  std::string why = errno == ENOTDIR ? "it is not a folder" : last_error();
  const auto found = look_at(at, name.c_str());
  if (found && S_ISLNK(found->st_mode) && (flags & O_NOFOLLOW) != 0)
    why = "it is a symbolic link, which is not followed";
  throw Error(ErrorKind::io, "cannot open the folder ", path_, ": ", why);
}

Directory::Directory(const std::string& path)
    : Directory(AT_FDCWD, path, kFolder, without_slashes_at_end(path)) {}

Directory::Directory(const DirectoryEntry& folder)
    : Directory(folder.folder(), folder.name(), kFolder | O_NOFOLLOW, folder.path()) {}

Directory Directory::if_any(const std::string& path) try { return Directory(path); } catch (const Error&) {
  return {};
}

Directory Directory::make(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    const bool is_file = error == std::errc::not_a_directory;
    throw Error(ErrorKind::io, "cannot make the folder ", path, ": ",
                is_file ? "it, or a folder above it, is a file" : error.message());
  }
  return Directory(path);
}

Directory Directory::make(const DirectoryEntry& folder) {
  if (::mkdirat(folder.folder(), folder.name(), 0777) != 0 && errno != EEXIST)
    throw Error(ErrorKind::io, "cannot make the folder ", folder.path(), ": ", last_error());
  return Directory(folder);
}

DirectoryEntry Directory::operator/(const std::string& name) const& {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
    throw std::logic_error(concat("\"", name, "\" is no name in a folder"));
  return {descriptor_.get(), name, concat(path_, path_.ends_with('/') ? "" : "/", name)};
}

std::vector<std::string> Directory::names() const {
  const auto fail = [&] { throw Error(ErrorKind::io, "cannot read the folder ", path_, ": ", last_error()); };
  Descriptor readable = open_at(descriptor_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(readable ? ::fdopendir(readable.get()) : nullptr,
                                                    ::closedir);
  if (entries == nullptr) fail();
  readable.release();
  std::vector<std::string> names;
  while (errno = 0, true) {
    const dirent* const entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) fail();
  return names;
}

bool exists(const DirectoryEntry& entry) { return look_at(entry.folder(), entry.name()).has_value(); }

std::optional<double> modified_s(const DirectoryEntry& entry) {
  const auto found = look_at(entry.folder(), entry.name());
  if (!found) return std::nullopt;
  return static_cast<double>(found->st_mtim.tv_sec) + 1e-9 * static_cast<double>(found->st_mtim.tv_nsec);
}

bool remove_file(const DirectoryEntry& file) { return ::unlinkat(file.folder(), file.name(), 0) == 0; }

std::string read_link(const DirectoryEntry& link) {
  std::array<char, 4096> target{};
  const ssize_t size = ::readlinkat(link.folder(), link.name(), target.data(), target.size());
  return size < 0 ? std::string() : std::string(target.data(), static_cast<std::size_t>(size));
}

Descriptor open_at(int folder, const char* name, int flags) {
  const int opened = ::openat(folder, name, flags, 0666);
  return Descriptor(opened < 0 && errno == ESTALE ? ::openat(folder, name, flags, 0666) : opened);
}

Descriptor open_file(const DirectoryEntry& entry, int flags) {
  constexpr int kCarefully = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  Descriptor file = open_at(entry, flags | kCarefully);
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorKind::io, "cannot ", (flags & O_CREAT) == 0 ? "read " : "write ", entry.path(), ": ",
                why);
  };
  if (!file && errno == ENOENT && (flags & O_CREAT) == 0) return file;
  if (!file) fail(errno == ELOOP ? "it is a symbolic link, which is not followed" : last_error());
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) fail(last_error());
  if (S_ISDIR(found.st_mode)) fail("Is a directory");
  if (!S_ISREG(found.st_mode)) fail("it is a pipe, device or socket");
  return file;
}

}  // namespace cifar_mpi
