#include "cifar_mpi/report/best_effort_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::report {

void BestEffortFile::open(Descriptor file, const std::string& path) {
  file_ = std::move(file);
  path_ = path;
  size_ = ::lseek(file_.get(), 0, SEEK_END);
}

bool BestEffortFile::write(std::string_view piece) {
  std::size_t done = 0;
  while (file_ && done < piece.size()) {
    const ssize_t written = ::write(file_.get(), piece.data() + done, piece.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      warn(written < 0 ? last_error() : "the disk is full");
      if (done > 0 && ::ftruncate(file_.get(), size_) != 0) close();
      return false;
    }
    done += static_cast<std::size_t>(written);
  }
  size_ += static_cast<std::int64_t>(done);
  return static_cast<bool>(file_);
}

void BestEffortFile::warn(const std::string& reason) {
  if (!std::exchange(warned_, true))
    log_.warn(concat("cannot write ", path_, ": ", reason, "; training continues, but ", loss_));
}

}  // namespace cifar_mpi::report
