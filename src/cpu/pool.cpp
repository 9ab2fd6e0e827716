#include "cpu/pool.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/parallel.hpp"
#include "cpu/vectors.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Bytes;
using engine::Lane;
using engine::Task;

/// Places along one axis.
struct Span {
  int first = 0;
  int end = 0;
};

/// One axis of an image and of its windows.
struct Axis {
  Axis(const model::MaxPool& layer, int image)
      : kernel(layer.kernel),
        stride(layer.stride),
        size(image),
        outputs(model::padding_of(layer, image).outputs),
        before(model::padding_of(layer, image).before) {}
  /// The places inside the image that the window of an output covers.
  Span places(int output) const {
    const int first = stride * output - before;
    return {std::max(first, 0), std::min(first + kernel, size)};
  }
  /// The outputs whose windows cover a place.
  Span windows(int place) const {
    const int padded = place + before;
    const int end = std::min(padded / stride + 1, outputs);
    return {std::min(padded < kernel ? 0 : (padded - kernel) / stride + 1, end), end};
  }
  int number(int place, int output) const { return place + before - stride * output; }

  int kernel, stride, size, outputs, before;
};

/// Results at distance `step` in a row; the first has this reach, and each later reach is shifted.
struct Columns {
  int first = 0;
  int length = 0;
  Span reach;
};

/// All `count` results of a row in this form; reaches of results at distance `step` may differ by `shift`.
template <class ReachOf>
std::vector<Columns> columns_of(int count, int step, int shift, const ReachOf& reach_of) {
  std::vector<Columns> all;
  for (int phase = 0; phase < std::min(step, count); ++phase) {
    all.push_back({phase, 0, reach_of(phase)});
    for (int i = phase; i < count; i += step) {
      const Span reach = reach_of(i), last = all.back().reach;
      const int moved = shift * all.back().length;
      if (reach.first != last.first + moved || reach.end != last.end + moved) all.push_back({i, 0, reach});
      ++all.back().length;
    }
  }
  return all;
}

/// A value that a result reads, relative to its first one, and its place in the window.
struct Reach {
  std::ptrdiff_t at = 0;
  std::uint32_t number = 0;
};

/// `length` results in a row of a block; from one to the next, inputs advance by `from_step` and outputs by
/// `to_step`.
struct Run {
  std::vector<Reach> reaches;
  int length = 0;
  std::ptrdiff_t from = 0;  ///< the first value that the first one reads
  std::ptrdiff_t to = 0;    ///< address of the first one
  std::ptrdiff_t from_step = 0;
  std::ptrdiff_t to_step = 0;
};

template <class T>
struct Forward {
  template <int kLanes>
  struct Version {
    using V = Vec<kLanes>;

    /// kVectors of the channels of one result.
    template <int kVectors>
    [[gnu::always_inline]] static void tile(const Run& run, const T* from, T* to, std::uint8_t* choices) {
      const Reach* const reaches = run.reaches.data();
      const std::size_t count = run.reaches.size();
      V best[kVectors];
      BitsOf<V> choice[kVectors];
      unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
        best[v] = load<V>(from + reaches[0].at + v * kLanes);
        choice[v] = broadcast_bits<V>(reaches[0].number);
      });
      for (std::size_t r = 1; r < count; ++r) {
        const T* const at = from + reaches[r].at;
        const BitsOf<V> number = broadcast_bits<V>(reaches[r].number);
        unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
          const V value = load<V>(at + v * kLanes);
          const auto larger = value > best[v];
          choice[v] = larger ? number : choice[v];
          best[v] = larger ? value : best[v];
        });
      }
      unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
        store(to + v * kLanes, best[v]);
        if (choices != nullptr) store_bytes<V>(choices + v * kLanes, choice[v]);
      });
    }

    [[gnu::always_inline]] static void run(const Pool& pool, const Run& run, const std::byte* src,
                                           std::byte* dst, std::uint8_t* choices) {
      const T* from = reinterpret_cast<const T*>(src);
      T* to = reinterpret_cast<T*>(dst);
      for (int i = 0; i < run.length; ++i, from += run.from_step, to += run.to_step) {
        std::uint8_t* const chosen = choices == nullptr ? nullptr : choices + i * run.to_step;
        int c = 0;
        for (; c + 4 * kLanes <= pool.block; c += 4 * kLanes)
          tile<4>(run, from + c, to + c, chosen == nullptr ? nullptr : chosen + c);
        for (; c < pool.block; c += kLanes) {
          const int last = std::min(c, pool.block - kLanes);  // recomputes some values
          tile<1>(run, from + last, to + last, chosen == nullptr ? nullptr : chosen + last);
        }
      }
    }
  };
};

/// Copies of the constants of the first kCount reaches, because stores could alias the originals.
template <class V, int kCount>
struct Copied {
  [[gnu::always_inline]] explicit Copied(const Reach* reaches) {
    unrolled<kCount>([&](auto r) __attribute__((always_inline)) {
      at[r] = reaches[r].at;
      number[r] = broadcast_bits<V>(reaches[r].number);
    });
  }
  std::ptrdiff_t at[kCount + 1];
  BitsOf<V> number[kCount + 1];
};

template <class T>
struct Backward {
  template <int kLanes>
  struct Version {
    using V = Vec<kLanes>;

    /// The value of a window, or zeros; `choices` and `from` point to its choices and gradients.
    [[gnu::always_inline]] static V taken(const std::uint8_t* choices, const T* from,
                                          const BitsOf<V>& number) {
      return load_bytes<V>(choices) == number ? load<V>(from) : V{};
    }

    /// The type fixes the number of windows, unless it is 0.
    template <int kCount>
    [[gnu::always_inline]] static void gather(const Pool& pool, const Run& run, const T* from,
                                              const std::uint8_t* choices, T* to) {
      const Reach* const reaches = run.reaches.data();
      const std::size_t count = run.reaches.size();
      const Copied<V, kCount> own(reaches);
      const std::ptrdiff_t from_step = run.from_step, to_step = run.to_step;
      const int block = pool.block, length = run.length;
      for (int i = 0; i < length; ++i, from += from_step, choices += from_step, to += to_step) {
        for (int next = 0; next < block; next += kLanes) {
          const int c = std::min(next, block - kLanes);
          V sum{};
          unrolled<kCount>([&](auto r) __attribute__((always_inline)) {
            sum += taken(choices + own.at[r] + c, from + own.at[r] + c, own.number[r]);
          });
          for (std::size_t r = 0; kCount == 0 && r < count; ++r) {
            const Reach& reach = reaches[r];
            sum += taken(choices + reach.at + c, from + reach.at + c, broadcast_bits<V>(reach.number));
          }
          store(to + c, sum);
        }
      }
    }

    [[gnu::always_inline]] static void run(const Pool& pool, const Run& run, const std::byte* grad_dst,
                                           const std::uint8_t* choices, std::byte* grad_src) {
      const T* const from = reinterpret_cast<const T*>(grad_dst);
      T* const to = reinterpret_cast<T*>(grad_src);
      const std::size_t count = run.reaches.size();
      if (count == 1) return gather<1>(pool, run, from, choices, to);
      if (count == 2) return gather<2>(pool, run, from, choices, to);
      if (count == 4) return gather<4>(pool, run, from, choices, to);
      gather<0>(pool, run, from, choices, to);
    }
  };
};

/// Backward of windows that do not overlap, by runs of the forward pass: each gradient and choice is loaded once. Places
/// without a window are left out. The bits are those of Backward.
template <class T>
struct Scatter {
  template <int kLanes>
  struct Version {
    using V = Vec<kLanes>;

    /// The type fixes the size of the window, unless it is 0, as in Backward.
    template <int kCount>
    [[gnu::always_inline]] static void scatter(const Pool& pool, const Run& run, const T* from,
                                               const std::uint8_t* choices, T* to) {
      const Reach* const reaches = run.reaches.data();
      const std::size_t count = run.reaches.size();
      const Copied<V, kCount> own(reaches);
      const std::ptrdiff_t from_step = run.to_step, to_step = run.from_step;
      const int block = pool.block, length = run.length;
      for (int i = 0; i < length; ++i, from += from_step, choices += from_step, to += to_step) {
        for (int next = 0; next < block; next += kLanes) {
          const int c = std::min(next, block - kLanes);
          const V grad = V{} + load<V>(from + c);  // a sum, as that of several windows
          const BitsOf<V> choice = load_bytes<V>(choices + c);
          unrolled<kCount>([&](auto r) __attribute__((always_inline)) {
            store(to + own.at[r] + c, choice == own.number[r] ? grad : V{});
          });
          for (std::size_t r = 0; kCount == 0 && r < count; ++r)
            store(to + reaches[r].at + c, choice == broadcast_bits<V>(reaches[r].number) ? grad : V{});
        }
      }
    }

    [[gnu::always_inline]] static void run(const Pool& pool, const Run& run, const std::byte* grad_dst,
                                           const std::uint8_t* choices, std::byte* grad_src) {
      const T* const from = reinterpret_cast<const T*>(grad_dst);
      T* const to = reinterpret_cast<T*>(grad_src);
      if (run.reaches.size() == 4) return scatter<4>(pool, run, from, choices, to);
      scatter<0>(pool, run, from, choices, to);
    }
  };
};

/// The version of `Direction` for the vectors that were chosen.
template <template <class> class Direction, class T>
auto version(const Pool& pool) {
  using Single = typename Direction<T>::template Version<1>;
  return pool.block < lanes_of(VectorSet::portable) ? &Single::run
                                                    : version_for<Direction<T>::template Version>(pool.set);
}

template <template <class> class Direction>
auto version(const Pool& pool) {
  return pool.precision == engine::Precision::bf16 ? version<Direction, bf16>(pool)
                                                   : version<Direction, float>(pool);
}

Bytes values_of(const Pool& pool, const Extent& image, const std::byte* data) {
  return {data, pool.values_in(image) * pool.value_bytes()};
}
Bytes choices_of(const Pool& pool, const std::uint8_t* choices) {
  return engine::bytes_of(choices, pool.values_in(pool.out()));
}

/// A side of a pass: rows of pixels of a block of channels.
struct Side {
  Side(const Pool& pool, const Extent& image)
      : pixel(pool.block), row(pixel * image.width), block(row * image.height), height(image.height) {}
  std::ptrdiff_t pixel, row, block;
  int height;
};

/// The runs of one row of results that reads these rows of a block; number(y, x) is the index of a value for
/// the first result of a run.
template <class NumberOf>
std::vector<Run> runs_of(int y, const Span& rows, const std::vector<Columns>& columns, const Side& src,
                         const Side& dst, int step, int shift, const NumberOf& number_of) {
  std::vector<Run> runs;
  for (const Columns& at : columns) {
    Run run;
    run.length = at.length;
    run.from = rows.first * src.row + at.reach.first * src.pixel;
    run.to = y * dst.row + at.first * dst.pixel;
    run.from_step = shift * src.pixel;
    run.to_step = step * dst.pixel;
    for (int r = rows.first; r < rows.end; ++r) {
      for (int c = at.reach.first; c < at.reach.end; ++c) {
        run.reaches.push_back({(r - rows.first) * src.row + (c - at.reach.first) * src.pixel,
                               static_cast<std::uint32_t>(number_of(at.first, r, c))});
      }
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

/// The runs of each row of results.
using Rows = std::vector<std::vector<Run>>;

Rows forward_rows(const Pool& pool) {
  const Axis down(pool.layer, pool.in.height), across(pool.layer, pool.in.width);
  const std::vector<Columns> columns =
      columns_of(across.outputs, 1, across.stride, [&](int output) { return across.places(output); });
  Rows rows;
  for (int oy = 0; oy < down.outputs; ++oy) {
    rows.push_back(runs_of(
        oy, down.places(oy), columns, Side(pool, pool.in), Side(pool, pool.out()), 1, across.stride,
        [&](int ox, int y, int x) { return down.number(y, oy) * down.kernel + across.number(x, ox); }));
  }
  return rows;
}

Rows backward_rows(const Pool& pool) {
  const Axis down(pool.layer, pool.in.height), across(pool.layer, pool.in.width);
  const std::vector<Columns> columns =
      columns_of(across.size, across.stride, 1, [&](int place) { return across.windows(place); });
  Rows rows;
  for (int y = 0; y < down.size; ++y) {
    rows.push_back(runs_of(
        y, down.windows(y), columns, Side(pool, pool.out()), Side(pool, pool.in), across.stride, 1,
        [&](int x, int oy, int ox) { return down.number(y, oy) * down.kernel + across.number(x, ox); }));
  }
  return rows;
}

/// Calls body(run, from, to) for the runs of all blocks of the batch, with rows in parallel; `from` and `to`
/// are the input and output indices of the run's first result.
template <class Body>
void for_all_runs(const Pool& pool, const Rows& rows, const Side& src, const Side& dst, const Body& body) {
  const std::ptrdiff_t in_all = std::ptrdiff_t{pool.batch} * pool.blocks * dst.height;
  parallel_for(in_all, [&](std::ptrdiff_t i) {
    const std::ptrdiff_t block = i / dst.height;
    for (const Run& run : rows[static_cast<std::size_t>(i % dst.height)])
      body(run, block * src.block + run.from, block * dst.block + run.to);
  });
}

}  // namespace

VectorSet pool_vectors(int block) {
  VectorSet widest = VectorSet::portable;
  for (const VectorSet set : vector_sets_here()) {
    if (lanes_of(set) <= block) widest = set;
  }
  return widest;
}

Task plan_pool_forward(const std::string& name, const Pool& pool, const std::byte* src, std::byte* dst,
                       std::uint8_t* choices) {
  const auto kernel = version<Forward>(pool);
  Task task;
  task.name = name;
  task.reads = {values_of(pool, pool.in, src)};
  task.writes = {values_of(pool, pool.out(), dst)};
  if (choices != nullptr) task.writes.push_back(choices_of(pool, choices));
  task.start = [=, rows = forward_rows(pool)](Lane&) {
    const auto bytes = static_cast<std::ptrdiff_t>(pool.value_bytes());
    for_all_runs(pool, rows, Side(pool, pool.in), Side(pool, pool.out()),
                 [&](const Run& run, std::ptrdiff_t from, std::ptrdiff_t to) {
                   kernel(pool, run, src + from * bytes, dst + to * bytes,
                          choices == nullptr ? nullptr : choices + to);
                 });
  };
  return task;
}

Task plan_pool_backward(const std::string& name, const Pool& pool, const std::byte* grad_dst,
                        const std::uint8_t* choices, std::byte* grad_src) {
  const auto kernel = version<Backward>(pool);
  Task task;
  task.name = name;
  task.reads = {values_of(pool, pool.out(), grad_dst), choices_of(pool, choices)};
  task.writes = {values_of(pool, pool.in, grad_src)};
  task.start = [=, rows = backward_rows(pool)](Lane&) {
    const auto bytes = static_cast<std::ptrdiff_t>(pool.value_bytes());
    for_all_runs(pool, rows, Side(pool, pool.out()), Side(pool, pool.in),
                 [&](const Run& run, std::ptrdiff_t from, std::ptrdiff_t to) {
                   kernel(pool, run, grad_dst + from * bytes, choices + from, grad_src + to * bytes);
                 });
  };
  return task;
}

BlockPool plan_block_pool(const Pool& pool) {
  const auto bytes = static_cast<std::ptrdiff_t>(pool.value_bytes());
  const auto for_runs = [](const Rows& rows, const auto& body) {
    for (const std::vector<Run>& row : rows) {
      for (const Run& run : row) body(run);
    }
  };
  BlockPool block;
  block.forward = [=, kernel = version<Forward>(pool), rows = forward_rows(pool)](
                      const std::byte* src, std::byte* dst, std::uint8_t* choices) {
    for_runs(rows, [&](const Run& run) {
      kernel(pool, run, src + run.from * bytes, dst + run.to * bytes,
             choices == nullptr ? nullptr : choices + run.to);
    });
  };
  const bool apart = pool.layer.kernel <= pool.layer.stride;
  Rows windows = apart ? forward_rows(pool) : Rows{}, places = backward_rows(pool);
  for (std::vector<Run>& row : places) {
    if (apart) std::erase_if(row, [](const Run& run) { return !run.reaches.empty(); });
  }
  block.backward = [=, gather = version<Backward>(pool), scatter = version<Scatter>(pool)](
                       const std::byte* grad_dst, const std::uint8_t* choices, std::byte* grad_src) {
    for_runs(windows, [&](const Run& run) {
      scatter(pool, run, grad_dst + run.to * bytes, choices + run.to, grad_src + run.from * bytes);
    });
    for_runs(places, [&](const Run& run) {
      gather(pool, run, grad_dst + run.from * bytes, choices + run.from, grad_src + run.to * bytes);
    });
  };
  return block;
}

}  // namespace cifar_mpi::cpu
