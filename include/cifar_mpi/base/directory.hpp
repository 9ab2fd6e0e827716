#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/base/handle.hpp"

/// Folders that are opened once, and files that are reached through them.
///
/// A path is resolved at each use; an opened folder stays the same one even if it is renamed or replaced by a
/// link. Files in folders where others may write are therefore reached through the opened folder by their
/// bare names, and no link is followed below it. A path that the user typed may lead through links.
namespace cifar_mpi {

void close_descriptor(int descriptor);
using Descriptor = Handle<int, close_descriptor, -1>;

/// The words for `errno`.
std::string last_error();

/// A name in an opened folder; the file may or may not exist. A view: the folder must outlive it.
///
/// A path converts to an entry. Links among its folders are followed; if the file itself is a link, it is not.
class DirectoryEntry {
 public:
  DirectoryEntry(
      std::string path);  // NOLINT(google-explicit-constructor): where a file is asked for, a path names it
  DirectoryEntry(const char* path)
      : DirectoryEntry(std::string(path)) {}  // NOLINT(google-explicit-constructor)

  /// For the system's calls that take an opened folder and a name.
  int folder() const { return folder_; }
  const char* name() const { return name_.c_str(); }
  /// For messages, not for opening.
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
  /// Opens the folder at `path`, following links. Throws Error{io}.
  explicit Directory(const std::string& path);
  /// Opens a folder in a folder; it must not be a link. Throws Error{io}.
  explicit Directory(const DirectoryEntry& folder);
  /// An empty Directory if the path cannot be opened.
  static Directory if_any(const std::string& path);
  /// Creates the folder first if it is missing; given a path, also its parents. Throws Error{io}.
  static Directory make(const std::string& path);
  static Directory make(const DirectoryEntry& folder);

  explicit operator bool() const { return static_cast<bool>(descriptor_); }
  const std::string& path() const { return path_; }  ///< as it was given, for messages

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

/// Whether the name exists, also as a dangling link.
bool exists(const DirectoryEntry& entry);

/// Modification time by the clock of the file system; empty if the entry does not exist.
std::optional<double> modified_s(const DirectoryEntry& entry);

/// Removes a file or a link; false when that fails.
bool remove_file(const DirectoryEntry& file);

/// The target of a symbolic link; empty if the entry is not a link.
std::string read_link(const DirectoryEntry& link);

/// Calls openat; returns an empty descriptor if that fails (see errno). Retries once after ESTALE, which a
/// network file system returns if its cache names a file that another node has replaced.
Descriptor open_at(int folder, const char* name, int flags);
inline Descriptor open_at(const DirectoryEntry& entry, int flags) {
  return open_at(entry.folder(), entry.name(), flags);
}

/// Opens a regular file with the `flags` of open(2). Follows no link and does not block on pipes. Returns an empty
/// descriptor if the file does not exist and O_CREAT is not given. Throws Error{io}: "cannot read PATH: …".
Descriptor open_file(const DirectoryEntry& file, int flags);

}  // namespace cifar_mpi
