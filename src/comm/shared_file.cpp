#include "comm/shared_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cifar_mpi/base/text.hpp"
#include "comm/mpi_check.hpp"
#include "comm/node_peers.hpp"
#include "comm/shared_memory.hpp"

namespace cifar_mpi::comm {
/// The first rank's message to the others; empty path: it could not be made.
struct SharedFile::Offer {
  std::array<char, 512> path{};
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t space = 0;

  /// True when `descriptor` is the file that was offered, and this user's alone.
  bool is(int descriptor) const {
    struct stat found {};
    return ::fstat(descriptor, &found) == 0 && found.st_dev == device && found.st_ino == inode &&
           S_ISREG(found.st_mode) && found.st_uid == ::geteuid() && (found.st_mode & 0077) == 0;
  }
};

SharedFile::SharedFile(MPI_Comm node, std::size_t bytes, std::size_t reserved) {
  static_assert(std::is_trivially_copyable_v<Offer>);
  for (const bool named : {false, true}) {
    if (try_to_share(node, bytes, reserved, named)) return;
    *this = {};
  }
}

bool SharedFile::occupy(std::size_t first, std::size_t bytes) const {
  return ::posix_fallocate(file_.get(), static_cast<off_t>(first), static_cast<off_t>(bytes)) == 0;
}

bool SharedFile::try_to_share(MPI_Comm node, std::size_t bytes, std::size_t reserved, bool named) {
  int rank = 0;
  check(MPI_Comm_rank(node, &rank), "asking for the rank on the node");
  Offer offer;
  std::string name;
  if (rank == 0) {
    const std::string folder = shared_memory().place;
    name = folder + "/cifar_mpi_XXXXXX";
    file_ = Descriptor(named ? ::mkostemp(name.data(), O_CLOEXEC)
                             : ::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    const std::string path = named ? name : concat("/proc/", ::getpid(), "/fd/", file_.get());
    struct stat made {};
    if (file_ && ::ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0 &&
        (reserved == 0 || occupy(0, reserved)) && ::fstat(file_.get(), &made) == 0 &&
        path.size() < offer.path.size()) {
      std::ranges::copy(path, offer.path.begin());
      offer.device = made.st_dev;
      offer.inode = made.st_ino;
      offer.space = pid_namespace();
    }
  }
  check(MPI_Bcast(&offer, sizeof offer, MPI_BYTE, 0, node), "sending the place of the shared memory", 0);
  if (rank != 0 && offer.path[0] != '\0' && (named || offer.space == pid_namespace())) {
    file_ = Descriptor(
        ::open(offer.path.data(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (named ? O_NOFOLLOW : 0)));
  }
  if (offer.path[0] != '\0' && file_ && offer.is(file_.get())) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (memory != MAP_FAILED)
      memory_ = {static_cast<std::byte*>(memory), bytes, [=] { ::munmap(memory, bytes); }};
  }
  int shared = data() != nullptr;
  check(MPI_Allreduce(MPI_IN_PLACE, &shared, 1, MPI_INT, MPI_MIN, node), "agreeing on the shared memory");
  if (rank == 0 && named && file_) ::unlink(name.c_str());
  return shared != 0;
}

}  // namespace cifar_mpi::comm
