#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace cifar_mpi::stand_in {

/// The memory of the GPU: addresses that fault while no work runs, after each array, and once it is freed.
/// Thread-safe.
class DeviceMemory {
 public:
  /// `bytes` of 0xFF that end less than 256 bytes before a protected page; null when memory is short.
  void* take(std::size_t bytes);
  /// False when it is not the start of an array, or when something wrote past its end.
  bool give(void* begin);
  bool holds(const void* address) const;
  std::size_t used() const;
  std::size_t total() const { return total_; }

  /// Whether the arrays can be accessed.
  void open(bool opened);

  void note_pinned(void* begin, std::size_t bytes);
  void drop_pinned(void* begin);
  bool is_pinned(const void* address) const;

 private:
  struct Array {
    std::size_t offset = 0;  ///< of the first requested byte, from the first page
    std::size_t bytes = 0;
    std::size_t pages_bytes = 0;
  };
  mutable std::mutex mutex_;
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
  bool opened_ = false;
  std::size_t used_ = 0;
  const std::size_t total_ = limit();
  std::map<std::byte*, Array> arrays_;  ///< by first page
  std::map<const std::byte*, std::size_t> pinned_;

  static std::size_t limit();
  bool reserve();
};

}  // namespace cifar_mpi::stand_in
