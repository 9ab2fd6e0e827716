#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/base/handle.hpp"

/// Folders that are opened once, and files that are reached through them.
///
/// A path says where to look now; an opened folder stays the same one, whoever renames it or puts a link in its place.
/// What lies in a folder where others may write is therefore reached through the opened folder and by its bare name,
/// and no link is followed below it. A path that the user typed may lead through links.
namespace cifar_mpi {

void close_descriptor(int descriptor);
using Descriptor = Handle<int, close_descriptor, -1>;

/// The words for `errno`.
std::string last_error();

/// A name in an opened folder, whether anything bears it or not. A view: the folder must outlive it.
///
/// A path converts to one and means what it means to the system: only a link in the place of the file itself is then
/// not followed.
class DirectoryEntry {
 public:
  DirectoryEntry(
      std::string path);  // NOLINT(google-explicit-constructor): where a file is asked for, a path names it
  DirectoryEntry(const char* path)
      : DirectoryEntry(std::string(path)) {}  // NOLINT(google-explicit-constructor)

  /// For the system's calls that take an opened folder and a name.
  int folder() const { return folder_; }
  const char* name() const { return name_.c_str(); }
  /// For people; nothing is opened by it.
  const std::string& path() const { return path_; }
  /// The entry of the same folder whose name is this one's followed by `ending`.
  DirectoryEntry operator+(const std::string& ending) const {
    return {folder_, name_ + ending, path_ + ending};
  }

 private:
  friend class Directory;
  DirectoryEntry(int folder, std::string name, std::string path)
      : folder_(folder), name_(std::move(name)), path_(std::move(path)) {}

  int folder_;
  std::string name_;
  std::string path_;
};

/// An opened folder.
class Directory {
 public:
  Directory() = default;  ///< none
  /// Opens the folder at `path`, through links where there are any. Throws Error{io}.
  explicit Directory(const std::string& path);
  /// Opens a folder in a folder; it must not be a link. Throws Error{io}.
  explicit Directory(const DirectoryEntry& folder);
  /// Makes it first where it is missing; by path also its parents. Throws Error{io}.
  static Directory make(const std::string& path);
  static Directory make(const DirectoryEntry& folder);

  explicit operator bool() const { return static_cast<bool>(descriptor_); }
  const std::string& path() const { return path_; }  ///< as it was given, for people

  /// Throws std::logic_error when `name` is a path.
  DirectoryEntry operator/(const std::string& name) const&;
  DirectoryEntry operator/(const std::string& name) const&& = delete;

  /// All names in it, in no order. Throws Error{io}.
  std::vector<std::string> names() const;

 private:
  Directory(int at, const std::string& name, int flags, std::string path);

  Descriptor descriptor_;
  std::string path_;
};

/// Whether anything bears that name, also a link that leads nowhere.
bool exists(const DirectoryEntry& entry);

/// When it was written, by the clock of its file system; nothing when there is nothing.
std::optional<double> modified_s(const DirectoryEntry& entry);

/// Removes a file or a link; false when that fails.
bool remove_file(const DirectoryEntry& file);

/// What a symbolic link says; empty when it is none.
std::string read_link(const DirectoryEntry& link);

/// What the system's openat gives, none when it fails (see errno). Tries once more after ESTALE: a network file system then
/// looked where the file was before another node replaced it, and has dropped that knowledge.
Descriptor open_at(int folder, const char* name, int flags);
inline Descriptor open_at(const DirectoryEntry& entry, int flags) {
  return open_at(entry.folder(), entry.name(), flags);
}

/// Opens a regular file with open's `flags`, for writing with O_CREAT also one that is not there yet; links are not
/// followed and pipes not waited for. Nothing when there is none and O_CREAT is not among the flags. Throws Error{io}:
/// "cannot read PATH: …".
Descriptor open_file(const DirectoryEntry& file, int flags);

}  // namespace cifar_mpi
