#include "cuda/stand_in/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace cifar_mpi::stand_in {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kAddresses = std::size_t{1} << 38;
constexpr unsigned char kPoison = 0xFF;
/// Larger arrays stay open, because protection takes time for each page.
constexpr std::size_t kMostClosed = std::size_t{8} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t page() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

std::size_t DeviceMemory::limit() {
  const char* const mib = std::getenv("STAND_IN_MIB");
  return (mib != nullptr ? std::strtoull(mib, nullptr, 10) : 4096) << 20;
}

bool DeviceMemory::reserve() {
  if (next_ != nullptr) return true;
  void* const all = mmap(nullptr, kAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return false;
  next_ = static_cast<std::byte*>(all);
  end_ = next_ + kAddresses;
  return true;
}

void* DeviceMemory::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t wanted = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  const std::size_t pages = round_up(wanted, page());
  if (wanted > total_ - used_ || !reserve() || pages + page() > static_cast<std::size_t>(end_ - next_)) {
    return nullptr;
  }
  std::byte* const first = next_;
  next_ += pages + page();
  if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) return nullptr;
  if (pages > kMostClosed) madvise(first, pages, MADV_HUGEPAGE);  // faster to fill, where there are any
  std::memset(first, kPoison, pages);
  if (!opened_ && pages <= kMostClosed) mprotect(first, pages, PROT_NONE);
  used_ += wanted;
  arrays_[first] = {pages - wanted, bytes, pages};
  return first + (pages - wanted);
}

bool DeviceMemory::give(void* begin) {
  const std::lock_guard lock(mutex_);
  auto it = arrays_.upper_bound(static_cast<std::byte*>(begin));
  if (it == arrays_.begin()) return false;
  --it;
  const auto [first, array] = *it;
  if (first + array.offset != begin) return false;
  mprotect(first, array.pages_bytes, PROT_READ);
  const auto untouched = [](std::byte value) { return value == std::byte{kPoison}; };
  const bool good = std::all_of(first, first + array.offset, untouched) &&
                    std::all_of(first + array.offset + array.bytes, first + array.pages_bytes, untouched);
  madvise(first, array.pages_bytes, MADV_DONTNEED);
  mprotect(first, array.pages_bytes, PROT_NONE);
  used_ -= round_up(std::max<std::size_t>(array.bytes, 1), kAlignment);
  arrays_.erase(it);
  return good;
}

bool DeviceMemory::holds(const void* address) const {
  const std::lock_guard lock(mutex_);
  auto it = arrays_.upper_bound(static_cast<std::byte*>(const_cast<void*>(address)));
  if (it == arrays_.begin()) return false;
  --it;
  return address < it->first + it->second.pages_bytes;
}

std::size_t DeviceMemory::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void DeviceMemory::open(bool opened) {
  const std::lock_guard lock(mutex_);
  if (opened == opened_) return;
  opened_ = opened;
  for (const auto& [first, array] : arrays_) {
    if (array.pages_bytes > kMostClosed) continue;
    mprotect(first, array.pages_bytes, opened ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

void DeviceMemory::note_pinned(void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  pinned_[static_cast<const std::byte*>(begin)] = bytes;
}

void DeviceMemory::drop_pinned(void* begin) {
  const std::lock_guard lock(mutex_);
  pinned_.erase(static_cast<const std::byte*>(begin));
}

bool DeviceMemory::is_pinned(const void* address) const {
  const std::lock_guard lock(mutex_);
  auto it = pinned_.upper_bound(static_cast<const std::byte*>(address));
  if (it == pinned_.begin()) return false;
  --it;
  return address < it->first + it->second;
}

}  // namespace cifar_mpi::stand_in
