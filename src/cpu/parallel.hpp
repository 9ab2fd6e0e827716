#pragma once

#include <cstddef>
#include <type_traits>

/// Loops whose items the threads of a rank share.
///
/// Items are equal pieces of work: images, vectors of channels, rows of a product. Each thread gets one range
/// of neighbouring items. An item writes only its own results and adds in a fixed order, so results have the
/// same bits for any number of threads.
namespace cifar_mpi::cpu {

/// Items [begin, end).
struct Range {
  std::ptrdiff_t begin = 0;
  std::ptrdiff_t end = 0;

  std::ptrdiff_t size() const { return end - begin; }
};

/// The share of one of `threads` threads.
constexpr Range range_of(std::ptrdiff_t items, int threads, int thread) {
  return {items * thread / threads, items * (thread + 1) / threads};
}

/// Time of the busiest thread relative to perfectly shared work; at least 1.
double slowdown(std::ptrdiff_t items, int threads);

/// A view of a callable, which must outlive the call.
class RangeBody {
 public:
  template <class Body>
  RangeBody(const Body& body)  // implicit, like a reference
      : object_(&body),
        call_([](const void* object, Range range) { (*static_cast<const Body*>(object))(range); }) {}
  void operator()(Range range) const { call_(object_, range); }

 private:
  const void* object_;
  void (*call_)(const void*, Range);
};

/// Number of threads that share a loop, and for which oneDNN plans kernels.
int loop_threads();
void set_loop_threads(int threads);
/// Number of the calling thread inside a loop's body, below loop_threads(); 0 outside.
int loop_thread();

/// Calls body(Range) until all items are done, on all threads at once; a thread may get several ranges. If
/// each thread has enough items, ranges end at multiples of `together`, the number of items that share
/// operands.
void parallel_ranges(std::ptrdiff_t items, RangeBody body, std::ptrdiff_t together = 1);

/// The same for loops where each item is one of `parts` ranges of the counted items.
void parallel_ranges_of_parts(std::ptrdiff_t items, int parts, RangeBody body);

/// Calls body(i) for each item.
template <class Body>
void parallel_for(std::ptrdiff_t items, const Body& body) {
  parallel_ranges(items, [&](Range range) {
    for (std::ptrdiff_t i = range.begin; i < range.end; ++i) body(i);
  });
}

/// Calls body(part, Range) once for each of `parts` parts of the items, which are the same in each run: for
/// sums whose bits depend on the parts, and for memory that belongs to a part.
template <class Body>
void parallel_parts(std::ptrdiff_t items, int parts, const Body& body) {
  parallel_ranges_of_parts(items, parts, [&](Range range) {
    for (std::ptrdiff_t part = range.begin; part < range.end; ++part)
      body(static_cast<int>(part), range_of(items, parts, static_cast<int>(part)));
  });
}

/// Calls body(begin, end) for stretches of an array of `count` values; all except the last are whole blocks.
template <class Body>
void parallel_values(std::size_t count, const Body& body) {
  constexpr std::size_t kBlock = 256;
  parallel_ranges(static_cast<std::ptrdiff_t>((count + kBlock - 1) / kBlock), [&](Range range) {
    const std::size_t begin = static_cast<std::size_t>(range.begin) * kBlock;
    const std::size_t end = static_cast<std::size_t>(range.end) * kBlock;
    body(begin, end < count ? end : count);
  });
}

/// While it lives, it receives the loops and oneDNN kernels of its thread instead of the team. It may skip
/// them.
class LoopObserver {
 public:
  LoopObserver();
  virtual ~LoopObserver();
  LoopObserver(const LoopObserver&) = delete;
  LoopObserver& operator=(const LoopObserver&) = delete;

  /// `items` is the number of items, `body` takes ranges of [0, ranges).
  virtual void on_loop(std::ptrdiff_t items, std::ptrdiff_t ranges, RangeBody body) = 0;
  /// Whether to run the kernel.
  virtual bool on_kernel() = 0;

  /// That of the calling thread; null: none.
  static LoopObserver* here();
};

}  // namespace cifar_mpi::cpu
