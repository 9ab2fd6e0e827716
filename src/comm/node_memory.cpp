#include "comm/node_memory.hpp"

#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {
namespace {

using Counter = std::atomic<std::uint64_t>;
static_assert(Counter::is_always_lock_free);

/// Before the data of each rank: its counter, on lines that no prefetcher pulls in with the data.
constexpr std::size_t kHead = 256;

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::size_t whole_pages(std::size_t bytes) {
  const std::size_t page = page_bytes();
  return (bytes + page - 1) / page * page;
}

}  // namespace

std::uint64_t NodeMemory::footprint(std::size_t bytes) { return whole_pages(kHead + bytes); }

NodeMemory::NodeMemory(MPI_Comm node, std::size_t bytes) : bytes_(bytes) {
  int ranks = 0;
  check(MPI_Comm_rank(node, &rank_), "asking for the rank on the node");
  check(MPI_Comm_size(node, &ranks), "asking for the node's number of ranks");
  const std::size_t each = footprint(bytes);
  file_ = SharedFile(node, static_cast<std::size_t>(ranks) * each, 0);
  if (file_.data() == nullptr)
    throw Error(ErrorKind::device, "the ranks of the node cannot have a file in shared memory together");
  for (int r = 0; r < ranks; ++r) bases_.push_back(file_.data() + static_cast<std::size_t>(r) * each);
}

NodeMemory::NodeMemory(int rank, std::vector<std::byte*> parts, std::size_t bytes)
    : bytes_(bytes), rank_(rank), bases_(std::move(parts)) {}

bool NodeMemory::occupy() {
  std::byte* const begin = bases_[static_cast<std::size_t>(rank_)];
  const std::size_t size = kHead + bytes_;
  const std::size_t each = footprint(bytes_);
  if (file_.data() != nullptr && !file_.occupy(static_cast<std::size_t>(rank_) * each, each)) return false;
  std::memset(begin, 0, size);
  new (begin) Counter(0);
  return true;
}

std::byte* NodeMemory::data(int rank) const { return bases_[static_cast<std::size_t>(rank)] + kHead; }

std::atomic<std::uint64_t>& NodeMemory::counter(int rank) const {
  return *std::launder(reinterpret_cast<Counter*>(bases_[static_cast<std::size_t>(rank)]));
}

}  // namespace cifar_mpi::comm
