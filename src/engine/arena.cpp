#include "cifar_mpi/engine/arena.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::engine {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

std::byte* Arena::take(std::size_t size) {
  // An empty take gets its own line too, so that no two takes return the same address.
  const std::size_t rounded = (std::max(size, std::size_t{1}) + kAlignment - 1) / kAlignment * kAlignment;
  Chunk* best = nullptr;
  for (Chunk& chunk : chunks_) {
    if (chunk.taken || chunk.buffer.size() < rounded) continue;
    if (best == nullptr || chunk.buffer.size() < best->buffer.size()) best = &chunk;
  }
  if (best != nullptr) {
    best->taken = true;
    return best->buffer.data();
  }
  Buffer buffer = allocate_(rounded);
  if (buffer.data() == nullptr || buffer.size() < rounded ||
      reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment != 0) {
    throw std::logic_error(concat("Arena: asked its allocator for ", rounded, " bytes on a ", kAlignment,
                                  "-byte boundary and got ", buffer.size(), " bytes at ",
                                  static_cast<const void*>(buffer.data())));
  }
  chunks_.push_back({std::move(buffer), true});
  return chunks_.back().buffer.data();
}

void Arena::rewind() {
  for (Chunk& chunk : chunks_) chunk.taken = false;
}

std::vector<Bytes> Arena::regions() const {
  std::vector<Bytes> regions;
  regions.reserve(chunks_.size());
  for (const Chunk& chunk : chunks_) regions.push_back({chunk.buffer.data(), chunk.buffer.size()});
  return regions;
}

}  // namespace cifar_mpi::engine
