#include "cifar_mpi/comm/heartbeat.hpp"

#include <fcntl.h>
#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string>

#include "comm/mpi_check.hpp"
#include "comm/node_peers.hpp"
#include "comm/shared_memory.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

static_assert(std::atomic<Activity>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "they are read by other processes");

/// Before the heartbeats: whether somebody has taken the floor.
constexpr std::size_t kHead = alignof(Heartbeat);
static_assert(sizeof(std::atomic<std::uint32_t>) <= kHead);

std::size_t bytes_for(int ranks) { return kHead + static_cast<std::size_t>(ranks) * sizeof(Heartbeat); }

/// An open file in shared memory; closed when it goes.
struct File {
  ~File() {
    if (handle >= 0) close(handle);
  }
  int handle = -1;
};

/// Not MPI's own shared memory: that ends with MPI, and freeing it is collective, but a watchdog must be able
/// to look to the last moment.
std::byte* map(int handle, std::size_t bytes) {
  const int flags = handle < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, handle, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

/// A new file of zeros whose pages are there: a full folder shows now, not as SIGBUS later. `name` becomes
/// its path; empty when it could not be had.
void create(File& file, std::string& name, std::size_t bytes) {
  name = shared_memory().place + "/cifar_mpi_heartbeat_XXXXXX";
  file.handle = mkostemp(name.data(), O_CLOEXEC);
  if (file.handle >= 0 && posix_fallocate(file.handle, 0, static_cast<off_t>(bytes)) == 0) return;
  if (file.handle >= 0) unlink(name.c_str());
  name.clear();
}

/// Memory that all ranks of the node see, or nullptr on all of them.
std::byte* share(MPI_Comm node, std::size_t bytes) {
  constexpr int kPath = 512;
  int rank = 0;
  check(MPI_Comm_rank(node, &rank), "asking for the rank on the node");
  File file;
  std::string name;
  if (rank == 0) create(file, name, bytes);
  name.resize(kPath);
  check(MPI_Bcast(name.data(), kPath, MPI_CHAR, 0, node), "telling where the heartbeats stand", 0);
  if (rank != 0 && name[0] != '\0') file.handle = open(name.c_str(), O_RDWR | O_CLOEXEC);
  std::byte* const memory = file.handle < 0 ? nullptr : map(file.handle, bytes);
  int mapped = memory != nullptr;
  check(MPI_Allreduce(MPI_IN_PLACE, &mapped, 1, MPI_INT, MPI_MIN, node), "agreeing on the heartbeats");
  if (rank == 0 && name[0] != '\0') unlink(name.c_str());
  if (mapped != 0) return memory;
  if (memory != nullptr) munmap(memory, bytes);
  return nullptr;
}

}  // namespace

Heartbeats::Heartbeats(const World& world) : world_(world) {
  MPI_Comm const node = WorldAccess::node(world);
  memory_ = share(node, bytes_for(world.node_size()));
  alone_ = memory_ == nullptr;
  if (alone_) memory_ = map(-1, bytes_for(1));
  if (memory_ == nullptr) throw std::bad_alloc();
  new (memory_ + kHead + static_cast<std::size_t>(self()) * sizeof(Heartbeat)) Heartbeat;
  mine().rank = world.rank();
  check(MPI_Barrier(node), "waiting for the first heartbeats");
}

Heartbeats::~Heartbeats() { munmap(memory_, bytes_for(ranks())); }

int Heartbeats::ranks() const { return alone_ ? 1 : world_.node_size(); }

int Heartbeats::self() const { return alone_ ? 0 : world_.node_rank(); }

Heartbeat& Heartbeats::of(int place) const {
  std::byte* const at = memory_ + kHead + static_cast<std::size_t>(place) * sizeof(Heartbeat);
  return *std::launder(reinterpret_cast<Heartbeat*>(at));
}

int Heartbeats::pid(int place) const {
  return WorldAccess::peers(world_).pid(alone_ ? world_.node_rank() : place);
}

bool Heartbeats::gone(int place) const { return !alone_ && WorldAccess::peers(world_).gone(place); }

bool Heartbeats::take_the_floor() const {
  auto& taken = *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_);
  return taken.exchange(1) == 0;
}

}  // namespace cifar_mpi::comm
