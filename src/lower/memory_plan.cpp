#include "lower/memory_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::lower {
namespace {

using engine::Bytes;
using engine::Task;

constexpr std::size_t kAlignment = 256;
/// Far from any memory of a process, so that the two cannot be confused.
constexpr std::uintptr_t kNowhere = std::uintptr_t{1} << 60;

/// The lifetime of a piece, from its first to its last task, and whether concurrent tasks touch it.
struct Life {
  std::size_t size = 0;
  std::size_t first = SIZE_MAX;
  std::size_t last = 0;
  bool concurrent = false;    ///< a concurrent task touches it
  bool ordered = false;       ///< a task that is not concurrent touches it
  std::size_t on = SIZE_MAX;  ///< shares the bytes of this piece

  bool touched() const { return first != SIZE_MAX; }
};

bool meet(const Life& a, const Life& b, std::size_t end) {
  if (!a.touched() || !b.touched()) return false;
  const bool among_themselves = !a.ordered && !b.ordered;
  const auto last = [&](const Life& life) { return life.concurrent && !among_themselves ? end : life.last; };
  return a.first <= last(b) && b.first <= last(a);
}

std::vector<Life> lives_of(const ImaginaryArena& pieces, const std::vector<Task>& tasks) {
  std::vector<Life> lives(pieces.pieces().size());
  for (std::size_t p = 0; p < lives.size(); ++p) lives[p].size = pieces.pieces()[p].size;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    for (const auto* const ranges : {&tasks[t].reads, &tasks[t].writes}) {
      for (const Bytes& bytes : *ranges) {
        const std::size_t p = pieces.piece_of(bytes);
        if (p == ImaginaryArena::npos) continue;
        lives[p].first = std::min(lives[p].first, t);
        lives[p].last = std::max(lives[p].last, t);
        (tasks[t].concurrent ? lives[p].concurrent : lives[p].ordered) = true;
      }
    }
  }
  return lives;
}

std::size_t root_of(const std::vector<Life>& lives, std::size_t p) {
  while (lives[p].on != SIZE_MAX) p = lives[p].on;
  return p;
}

/// Lets `fresh` share the bytes of `old` if the task that writes it is the last to touch `old`.
void merge(std::vector<Life>& lives, std::size_t fresh, std::size_t old) {
  fresh = root_of(lives, fresh);
  old = root_of(lives, old);
  Life& a = lives[old];
  Life& b = lives[fresh];
  if (old == fresh || a.last != b.first || a.concurrent || b.concurrent) return;
  a.last = b.last;
  a.size = std::max(a.size, b.size);
  b.on = old;
}

/// The last task before `reader` that writes some of `bytes`; the number of tasks when there is none.
std::size_t writer_before(const std::vector<Task>& tasks, std::size_t reader, const Bytes& bytes) {
  for (std::size_t t = reader; t-- > 0;) {
    if (std::ranges::any_of(tasks[t].writes, [&](const Bytes& write) { return write.overlaps(bytes); })) {
      return t;
    }
  }
  return tasks.size();
}

}  // namespace

Buffer ImaginaryArena::allocate(std::size_t size) {
  const std::uintptr_t begin =
      pieces_.empty() ? kNowhere
                      : reinterpret_cast<std::uintptr_t>(pieces_.back().begin) + pieces_.back().size;
  pieces_.push_back({reinterpret_cast<std::byte*>(begin), size});
  return {pieces_.back().begin, size, {}};
}

std::size_t ImaginaryArena::piece_of(const Bytes& bytes) const {
  if (bytes.size == 0 || pieces_.empty() || bytes.begin < pieces_.front().begin) return npos;
  const auto next = std::ranges::upper_bound(pieces_, bytes.begin, {}, &Piece::begin);
  const Piece& piece = *(next - 1);
  if (bytes.end() > piece.begin + piece.size) {
    throw std::logic_error("a task treats two pieces of memory as one");
  }
  return static_cast<std::size_t>(next - 1 - pieces_.begin());
}

MemoryPlan plan_memory(const ImaginaryArena& pieces, const std::vector<Task>& tasks,
                       const std::vector<std::pair<std::byte*, std::byte*>>& onto) {
  std::vector<Life> lives = lives_of(pieces, tasks);
  for (const auto& [fresh, old] : onto) merge(lives, pieces.piece_of({fresh, 1}), pieces.piece_of({old, 1}));

  std::vector<std::size_t> order(lives.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return lives[a].size > lives[b].size; });
  MemoryPlan plan;
  plan.offsets.resize(lives.size(), 0);
  std::vector<std::size_t> placed;  // by offset
  for (const std::size_t p : order) {
    if (lives[p].on != SIZE_MAX || !lives[p].touched()) continue;
    std::size_t at = 0;
    for (const std::size_t other : placed) {
      const std::size_t end = plan.offsets[other] + lives[other].size;
      if (!meet(lives[p], lives[other], tasks.size()) || end <= at) continue;
      if (plan.offsets[other] >= at + lives[p].size) break;
      at = (end + kAlignment - 1) / kAlignment * kAlignment;
    }
    plan.offsets[p] = at;
    plan.bytes = std::max(plan.bytes, at + lives[p].size);
    const auto offset_of = [&](std::size_t o) { return plan.offsets[o]; };
    placed.insert(std::ranges::upper_bound(placed, at, {}, offset_of), p);
  }
  for (std::size_t p = 0; p < lives.size(); ++p) plan.offsets[p] = plan.offsets[root_of(lives, p)];
  return plan;
}

void require_same_dataflow(const std::vector<Task>& imagined, const std::vector<Task>& placed) {
  for (std::size_t t = 0; t < placed.size(); ++t) {
    for (std::size_t r = 0; r < placed[t].reads.size(); ++r) {
      const std::size_t wanted = writer_before(imagined, t, imagined[t].reads[r]);
      const std::size_t found = writer_before(placed, t, placed[t].reads[r]);
      if (wanted == found || wanted == imagined.size()) continue;
      throw std::logic_error(concat("memory plan: '", placed[t].name, "' would read what '",
                                    placed[found].name, "' wrote instead of '", placed[wanted].name, "'"));
    }
  }
}

}  // namespace cifar_mpi::lower
