#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "cifar_mpi/engine/arena.hpp"
#include "cifar_mpi/engine/program.hpp"

/// Decides which pieces of a program's memory may share bytes.
///
/// A program is built twice. First every piece has its own addresses, which are never accessed: the declared
/// reads and writes of the tasks give the lifetime of each piece. Then the pieces get their places, and the
/// program is built again. The audit runner proves the declarations, and with them the plan.
namespace cifar_mpi::lower {

/// An arena of addresses without memory; records the pieces taken.
class ImaginaryArena {
 public:
  struct Piece {
    std::byte* begin = nullptr;
    std::size_t size = 0;
  };

  engine::Arena& arena() { return arena_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  /// The piece that contains `bytes`; npos for other memory. Throws std::logic_error when they span two.
  std::size_t piece_of(const engine::Bytes& bytes) const;
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);

 private:
  Buffer allocate(std::size_t size);

  std::vector<Piece> pieces_;  ///< by address
  engine::Arena arena_{[this](std::size_t size) { return allocate(size); }};
};

/// The place of each piece in one block.
struct MemoryPlan {
  std::vector<std::size_t> offsets;  ///< multiples of 256 bytes
  std::size_t bytes = 0;
};

/// `onto` lists pairs of pieces (new, old). The task that writes the new one may use the old one's bytes for
/// it, if no later task touches the old one.
///
/// A piece that a concurrent task touches lives to the end of the program, because that task may run at any
/// time; only later concurrent tasks, which run in order, may reuse its bytes. Pieces are placed largest
/// first, each at the lowest offset that is free during its lifetime.
MemoryPlan plan_memory(const ImaginaryArena& pieces, const std::vector<engine::Task>& tasks,
                       const std::vector<std::pair<std::byte*, std::byte*>>& onto);

/// Throws std::logic_error naming a task that would read other values in `placed` than in `imagined`, the
/// same tasks before they had places, because another task writes there in between.
void require_same_dataflow(const std::vector<engine::Task>& imagined,
                           const std::vector<engine::Task>& placed);

}  // namespace cifar_mpi::lower
