#include "report/folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

namespace cifar_mpi::report {

std::string last_error() { return std::generic_category().message(errno); }

Descriptor open_folder(const std::string& path, std::string& why) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    why = last_error();
    return {};
  }
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder) return folder;
  why = last_error();
  struct stat found {};
  if (::lstat(path.c_str(), &found) == 0 && S_ISLNK(found.st_mode))
    why = "it is a symbolic link, which is not followed";
  return folder;
}

}  // namespace cifar_mpi::report
