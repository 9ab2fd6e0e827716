#include "comm/window_operation.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "comm/add.hpp"

namespace cifar_mpi::comm {
namespace {

/// Floats that are added over all ranks before the next: 8 KiB, so that the partial sum stays in the nearest
/// cache.
constexpr std::size_t kChunk = 2048;

}  // namespace

WindowOperation::WindowOperation(const WindowPlace& place, WindowBlock& block, std::span<float> data,
                                 Wire wire, std::size_t fp32_prefix)
    : block_(block) {
  const int rank = block.memory.rank();
  if (rank >= place.owners) return;
  // Cut at cache lines: two owners never write the same one.
  constexpr std::size_t kLine = 16;
  const std::size_t lines = (data.size() + kLine - 1) / kLine;
  const std::size_t owners = static_cast<std::size_t>(place.owners);
  const std::size_t mine = static_cast<std::size_t>(rank);
  const std::size_t begin = std::min(data.size(), mine * lines / owners * kLine);
  const std::size_t end = std::min(data.size(), (mine + 1) * lines / owners * kLine);
  const std::byte* const first = reinterpret_cast<const std::byte*>(data.data() + begin);
  begin_ = static_cast<std::size_t>(first - block.memory.data(rank));
  count_ = end - begin;
  if (place.across.ranks == 1) return;
  across_.emplace(place.across,
                  StagingBuffer(wire, data.subspan(begin, count_), std::max(fp32_prefix, begin) - begin));
}

float* WindowOperation::slice_of(int node_rank) const {
  return reinterpret_cast<float*>(block_.memory.data(node_rank) + begin_);
}

bool WindowOperation::all_reached(std::uint64_t value) {
  while (reached_ < block_.memory.ranks() &&
         block_.memory.counter(reached_).load(std::memory_order_acquire) >= value) {
    ++reached_;
  }
  return reached_ == block_.memory.ranks();
}

/// Adds the slices of all ranks of the node. With several nodes the sum stays in the own array; otherwise it
/// is the total, and each chunk is copied to all ranks while it is in cache.
void WindowOperation::add_slices() {
  const int ranks = block_.memory.ranks();
  float* const own = count_ > 0 ? slice_of(block_.memory.rank()) : nullptr;
  if (ranks == 1) return;
  std::array<float, kChunk> total;
  for (std::size_t at = 0; at < count_; at += kChunk) {
    const std::size_t count = std::min(kChunk, count_ - at);
    add(total.data(), slice_of(0) + at, slice_of(1) + at, count);
    for (int r = 2; r < ranks; ++r) add(total.data(), slice_of(r) + at, count);
    if (across_) {
      std::memcpy(own + at, total.data(), count * sizeof(float));
    } else {
      broadcast(at, total.data(), count);
    }
  }
}

/// Writes a part of the total, `at` floats into the slice, into the array of every rank of the node.
void WindowOperation::broadcast(std::size_t at, const float* total, std::size_t count) {
  for (int r = 0; r < block_.memory.ranks(); ++r) {
    float* const dst = slice_of(r) + at;
    if (dst != total) std::memcpy(dst, total, count * sizeof(float));
  }
}

void WindowOperation::start() {
  assert(phase_ == Phase::done && "an all-reduce was started before it had ended");
  run_ = ++block_.runs;
  block_.memory.counter(block_.memory.rank()).store(2 * run_ - 1, std::memory_order_release);
  phase_ = Phase::arriving;
  reached_ = 0;
}

bool WindowOperation::poll() {
  if (phase_ == Phase::arriving && all_reached(2 * run_ - 1)) {
    add_slices();
    if (across_) across_->start();
    phase_ = Phase::crossing;
  }
  if (phase_ == Phase::crossing && (!across_ || across_->poll())) {
    if (across_ && count_ > 0) broadcast(0, slice_of(block_.memory.rank()), count_);
    block_.memory.counter(block_.memory.rank()).store(2 * run_, std::memory_order_release);
    phase_ = Phase::leaving;
    reached_ = 0;
  }
  if (phase_ == Phase::leaving && all_reached(2 * run_)) phase_ = Phase::done;
  return phase_ == Phase::done;
}

}  // namespace cifar_mpi::comm
