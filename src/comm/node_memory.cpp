#include "comm/node_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {
namespace {

using Counter = std::atomic<std::uint64_t>;
static_assert(Counter::is_always_lock_free);

/// Before the data of each rank: its counter, on lines that no prefetcher pulls in with the data.
constexpr std::size_t kHead = 256;
/// The library's own alignment is less than a cache line (Open MPI 4: 16 bytes). Every process finds a part
/// at another address, but all of them at the same place in a page, so all round it alike.
constexpr std::size_t kAlignment = 128;

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::size_t whole_pages(std::size_t bytes) {
  const std::size_t page = page_bytes();
  return (bytes + page - 1) / page * page;
}

}  // namespace

std::uint64_t NodeMemory::footprint(std::size_t bytes) { return whole_pages(kHead + bytes + kAlignment); }

NodeMemory::NodeMemory(MPI_Comm node, std::size_t bytes) : bytes_(bytes) {
  int ranks = 0;
  check(MPI_Comm_rank(node, &rank_), "asking for the rank on the node");
  check(MPI_Comm_size(node, &ranks), "asking for the node's number of ranks");
  std::byte* mine = nullptr;
  check(MPI_Win_allocate_shared(static_cast<MPI_Aint>(footprint(bytes)), 1, MPI_INFO_NULL, node, &mine,
                                &window_),
        "allocating memory that the ranks of a node share");
  check(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), "setting the error handler");
  for (int r = 0; r < ranks; ++r) {
    MPI_Aint size = 0;
    int unit = 0;
    std::byte* base = nullptr;
    check(MPI_Win_shared_query(window_, r, &size, &unit, &base), "finding a neighbour's memory", r);
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(base) % kAlignment;
    bases_.push_back(beyond == 0 ? base : base + (kAlignment - beyond));
  }
}

NodeMemory::NodeMemory(int rank, std::vector<std::byte*> parts, std::size_t bytes)
    : bytes_(bytes), rank_(rank), bases_(std::move(parts)) {}

NodeMemory::~NodeMemory() {
  if (window_ != MPI_WIN_NULL && std::uncaught_exceptions() == 0) MPI_Win_free(&window_);
}

bool NodeMemory::occupy() {
  std::byte* const begin = bases_[static_cast<std::size_t>(rank_)];
  const std::size_t size = kHead + bytes_;
  // The kernel reports what a plain write would answer with SIGBUS. Its range must begin with a page, and
  // the library may begin our part in mid-page behind its own; kernels before 5.14 do not know the request.
  const std::size_t into_page = reinterpret_cast<std::uintptr_t>(begin) % page_bytes();
  const int status = madvise(begin - into_page, size + into_page, MADV_POPULATE_WRITE);
  if (status != 0 && errno != EINVAL) return false;
  std::memset(begin, 0, size);
  new (begin) Counter(0);
  return true;
}

std::byte* NodeMemory::data(int rank) const { return bases_[static_cast<std::size_t>(rank)] + kHead; }

std::atomic<std::uint64_t>& NodeMemory::counter(int rank) const {
  return *std::launder(reinterpret_cast<Counter*>(bases_[static_cast<std::size_t>(rank)]));
}

}  // namespace cifar_mpi::comm
