#include "cifar_mpi/comm/heartbeat.hpp"

#include <mpi.h>

#include <new>

#include "comm/mpi_check.hpp"
#include "comm/shared_file.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

static_assert(std::atomic<Activity>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "they are read by other processes");

/// Precedes the heartbeats: whether the node has elected a reporter.
constexpr std::size_t kFirstBeat = alignof(Heartbeat);
static_assert(sizeof(std::atomic<std::uint32_t>) <= kFirstBeat);

std::size_t bytes_for(int ranks) { return kFirstBeat + static_cast<std::size_t>(ranks) * sizeof(Heartbeat); }

}  // namespace

Heartbeats::Heartbeats(const World& world) : world_(world) {
  MPI_Comm const node = WorldAccess::node(world);
  // Not MPI's own shared memory: that ends with MPI, and freeing it is collective, but a watchdog must be
  // able to read to the last moment.
  const std::size_t bytes = bytes_for(world.node_size());
  shared_ = std::make_unique<SharedFile>(node, bytes, bytes);
  alone_ = shared_->data() == nullptr;
  memory_ = shared_->data();
  if (alone_) {
    own_ = allocate_host(bytes_for(1) + alignof(Heartbeat));
    void* begin = own_.data();
    std::size_t space = own_.size();
    memory_ = static_cast<std::byte*>(std::align(alignof(Heartbeat), bytes_for(1), begin, space));
  }
  new (memory_ + kFirstBeat + static_cast<std::size_t>(self()) * sizeof(Heartbeat)) Heartbeat;
  mine().rank = world.rank();
  check(MPI_Barrier(node), "waiting for the first heartbeats");
}

Heartbeats::~Heartbeats() = default;

int Heartbeats::ranks() const { return alone_ ? 1 : world_.node_size(); }

int Heartbeats::self() const { return alone_ ? 0 : world_.node_rank(); }

Heartbeat& Heartbeats::of(int place) const {
  std::byte* const at = memory_ + kFirstBeat + static_cast<std::size_t>(place) * sizeof(Heartbeat);
  return *std::launder(reinterpret_cast<Heartbeat*>(at));
}

int Heartbeats::pid(int place) const {
  return WorldAccess::peers(world_).pid(alone_ ? world_.node_rank() : place);
}

bool Heartbeats::gone(int place) const { return !alone_ && WorldAccess::peers(world_).gone(place); }

bool Heartbeats::elect_reporter() const {
  auto& taken = *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_);
  return taken.exchange(1) == 0;
}

}  // namespace cifar_mpi::comm
