#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "cifar_mpi/engine/arena.hpp"
#include "cifar_mpi/engine/program.hpp"

/// Which pieces of a program's memory may lie on the same bytes.
///
/// A program is built twice. First every piece has addresses of its own, which nobody follows: what its tasks
/// say they read and write tells from when to when each piece lives. Then the same pieces get their places,
/// and the program is built again. The audit runner proves that the declarations are true, so the plan is.
namespace cifar_mpi::lower {

/// An arena of addresses that stand for no memory; remembers the pieces taken.
class ImaginaryArena {
 public:
  struct Piece {
    std::byte* begin = nullptr;
    std::size_t size = 0;
  };

  engine::Arena& arena() { return arena_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  /// The piece in which `bytes` lie; npos for memory of others. Throws std::logic_error when they lie in two.
  std::size_t piece_of(const engine::Bytes& bytes) const;
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);

 private:
  Buffer allocate(std::size_t size);

  std::vector<Piece> pieces_;  ///< by address
  engine::Arena arena_{[this](std::size_t size) { return allocate(size); }};
};

/// Where each piece lies in one block.
struct MemoryPlan {
  std::vector<std::size_t> offsets;  ///< multiples of 256 bytes
  std::size_t bytes = 0;
};

/// `onto` names pieces (new, old) of which the new one may take the old one's bytes in the very task that
/// makes it, when that task is the last to touch the old one.
///
/// A piece that a concurrent task touches lives to the end of the program, for nobody knows when that task
/// runs; only among such tasks themselves, which run in their order, it may give its bytes to the next.
/// Largest first, each at the lowest place where it meets none that lives at the same time.
MemoryPlan plan_memory(const ImaginaryArena& pieces, const std::vector<engine::Task>& tasks,
                       const std::vector<std::pair<std::byte*, std::byte*>>& onto);

/// Throws std::logic_error naming a task that would read other values in `placed` than in `imagined`, the same
/// tasks before they had places: somebody else has written there in between.
void require_same_dataflow(const std::vector<engine::Task>& imagined,
                           const std::vector<engine::Task>& placed);

}  // namespace cifar_mpi::lower
