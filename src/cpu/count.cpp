#include "cpu/count.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <mutex>
#include <utility>

#include "cpu/bf16.hpp"
#include "cpu/parallel.hpp"
#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::kHistogramBuckets;
using engine::ValueCounts;
using engine::ValueRun;

/// Values per chunk of a thread: as floats they fit the L1 cache.
constexpr std::size_t kChunk = 4096;
constexpr std::size_t kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Converts to floats; non-finite values become NaN, for which no comparison holds.
template <class T>
struct Load {
  [[gnu::always_inline]] static void run(const T* from, std::size_t count, float* to) {
    constexpr std::uint32_t kExponent = 0x7F800000;
    for (std::size_t i = 0; i < count; ++i) {
      const float value = to_float(from[i]);
      to[i] = (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? kNaN : value;
    }
  }
};

struct Ends {
  float least = kInfinity;
  float most = -kInfinity;
  std::uint64_t zeros = 0;
  std::uint64_t finite = 0;

  void join(const Ends& other) {
    least = std::min(least, other.least);
    most = std::max(most, other.most);
    zeros += other.zeros;
    finite += other.finite;
  }
};

/// The number of values is a multiple of kLanes.
struct FindEnds {
  [[gnu::always_inline]] static Ends run(const float* values, std::size_t count) {
    float least[kLanes], most[kLanes];
    std::uint32_t zeros[kLanes] = {}, finite[kLanes] = {};
    for (std::size_t j = 0; j < kLanes; ++j) least[j] = kInfinity, most[j] = -kInfinity;
    for (std::size_t i = 0; i < count; i += kLanes) {
      for (std::size_t j = 0; j < kLanes; ++j) {
        const float value = values[i + j];
        least[j] = value < least[j] ? value : least[j];
        most[j] = value > most[j] ? value : most[j];
        // Tests bits, because a processor may be set to treat denormals as 0.
        zeros[j] += (std::bit_cast<std::uint32_t>(value) << 1) == 0 ? 1u : 0u;
        finite[j] += value == value ? 1u : 0u;
      }
    }
    Ends ends;
    for (std::size_t j = 0; j < kLanes; ++j) ends.join({least[j], most[j], zeros[j], finite[j]});
    return ends;
  }
};

/// above[e] += number of values that are at least edges[e], one edge after the other while the values stay in
/// the cache: compilers keep one sum in registers, but not several.
struct CountAbove {
  [[gnu::always_inline]] static void run(const float* values, std::size_t count, const float* edges,
                                         std::uint64_t* above) {
    for (int e = 0; e < kHistogramBuckets; ++e) {
      const float edge = edges[e];
      std::uint32_t sum = 0;
      for (std::size_t i = 0; i < count; ++i) sum += values[i] >= edge ? 1u : 0u;
      above[e] += sum;
    }
  }
};

/// The versions of the loops for this processor.
struct Loops {
  void (*load)(const float*, std::size_t, float*) = best_version<Load<float>>();
  void (*load_bf16)(const bf16*, std::size_t, float*) = best_version<Load<bf16>>();
  Ends (*find_ends)(const float*, std::size_t) = best_version<FindEnds>();
  void (*count_above)(const float*, std::size_t, const float*, std::uint64_t*) = best_version<CountAbove>();
};

/// A tensor cut into chunks of at most kChunk values: chunk c is pieces [first[c], first[c + 1]).
class Tensor {
 public:
  explicit Tensor(Counted counted) : counted_(std::move(counted)) {
    std::size_t room = 0;
    for (ValueRun run : counted_.runs) {
      while (run.count > 0) {
        if (room == 0) first_.push_back(pieces_.size()), room = kChunk;
        const std::size_t count = std::min(run.count, room);
        pieces_.push_back({run.begin, count});
        values_ += count;
        run.begin += count, run.count -= count, room -= count;
      }
    }
    first_.push_back(pieces_.size());
  }

  std::size_t chunks() const { return first_.size() - 1; }

  engine::Bytes bytes() const {
    if (pieces_.empty()) return {};
    const std::size_t begin = pieces_.front().begin, end = pieces_.back().begin + pieces_.back().count;
    return {counted_.values + begin * value_bytes(), (end - begin) * value_bytes()};
  }
  engine::Bytes counts() const { return engine::bytes_of(counted_.counts, 1); }

  void count(const Loops& loops) const {
    const Ends ends = find_ends(loops);
    ValueCounts counts;
    counts.zeros = ends.zeros;
    counts.finite = ends.finite;
    counts.not_finite = values_ - ends.finite;
    if (ends.finite > 0) fill_buckets(loops, ends, counts);
    *counted_.counts = counts;
  }

 private:
  bool is_bf16() const { return counted_.type == dnnl::memory::data_type::bf16; }
  std::size_t value_bytes() const { return is_bf16() ? sizeof(bf16) : sizeof(float); }

  /// Converts the values of a chunk to floats and pads them with NaNs to a multiple of kLanes; returns the
  /// padded number.
  std::size_t load(const Loops& loops, std::size_t chunk, float* to) const {
    std::size_t loaded = 0;
    for (std::size_t p = first_[chunk]; p < first_[chunk + 1]; ++p) {
      const ValueRun& piece = pieces_[p];
      const std::byte* const from = counted_.values + piece.begin * value_bytes();
      if (is_bf16()) {
        loops.load_bf16(reinterpret_cast<const bf16*>(from), piece.count, to + loaded);
      } else {
        loops.load(reinterpret_cast<const float*>(from), piece.count, to + loaded);
      }
      loaded += piece.count;
    }
    while (loaded % kLanes != 0) to[loaded++] = kNaN;
    return loaded;
  }

  Ends find_ends(const Loops& loops) const {
    Ends all;
    std::mutex mutex;
    parallel_ranges(static_cast<std::ptrdiff_t>(chunks()), [&](Range range) {
      alignas(64) float values[kChunk];
      Ends mine;
      for (std::ptrdiff_t c = range.begin; c < range.end; ++c)
        mine.join(loops.find_ends(values, load(loops, static_cast<std::size_t>(c), values)));
      const std::lock_guard lock(mutex);
      all.join(mine);
    });
    return all;
  }

  void fill_buckets(const Loops& loops, const Ends& ends, ValueCounts& counts) const {
    for (int i = 0; i <= kHistogramBuckets; ++i)
      counts.edges[i] = engine::bucket_edge(ends.least, ends.most, i);
    std::uint64_t above[kHistogramBuckets + 1] = {};
    std::mutex mutex;
    parallel_ranges(static_cast<std::ptrdiff_t>(chunks()), [&](Range range) {
      alignas(64) float values[kChunk];
      std::uint64_t mine[kHistogramBuckets] = {};
      for (std::ptrdiff_t c = range.begin; c < range.end; ++c) {
        const std::size_t loaded = load(loops, static_cast<std::size_t>(c), values);
        loops.count_above(values, loaded, counts.edges, mine);
      }
      const std::lock_guard lock(mutex);
      for (int i = 0; i < kHistogramBuckets; ++i) above[i] += mine[i];
    });
    for (int i = 0; i < kHistogramBuckets; ++i) counts.buckets[i] = above[i] - above[i + 1];
  }

  Counted counted_;
  std::vector<ValueRun> pieces_;
  std::vector<std::size_t> first_;  ///< by chunk, and past the last
  std::size_t values_ = 0;
};

template <class T>
void copy_images(const T* x, const Extent& extent, int images, float* dst) {
  const int pixels = extent.height * extent.width;
  for (int n = 0; n < images; ++n, x += extent.count(), dst += extent.count()) {
    for (int c = 0; c < extent.channels; ++c) {
      for (int p = 0; p < pixels; ++p) dst[p * extent.channels + c] = to_float(x[c * pixels + p]);
    }
  }
}

}  // namespace

engine::Task plan_count(std::string name, std::vector<Counted> tensors) {
  std::vector<Tensor> cut;
  for (Counted& tensor : tensors) cut.emplace_back(std::move(tensor));
  engine::Task task;
  task.name = std::move(name);
  for (const Tensor& tensor : cut) {
    if (tensor.chunks() > 0) task.reads.push_back(tensor.bytes());
    task.writes.push_back(tensor.counts());
  }
  task.start = [cut = std::move(cut), loops = Loops()](engine::Lane& lane) {
    for (const Tensor& tensor : cut) {
      tensor.count(loops);
      lane.make_progress();
    }
  };
  return task;
}

std::vector<ValueRun> values_of(const Dnnl& dnnl, const Desc& desc, int batch, const Extent& extent) {
  using Type = dnnl::memory::data_type;
  const bool is_bf16 = data_type_of(desc) == Type::bf16;
  const std::size_t in_memory = desc.get_size() / (is_bf16 ? sizeof(bf16) : sizeof(float));
  const std::size_t values = static_cast<std::size_t>(batch) * static_cast<std::size_t>(extent.count());
  if (in_memory == values) return {{0, values}};
  // A reorder of ones leaves padding zero.
  const std::vector<float> ones(values, 1.0f);
  std::vector<std::byte> physical(desc.get_size());
  reorder_now(dnnl, activations(batch, extent, Type::f32, dnnl::memory::format_tag::nchw), ones.data(), desc,
              physical.data());
  return engine::runs_where(in_memory, [&](std::size_t i) {
    return is_bf16 ? reinterpret_cast<const bf16*>(physical.data())[i].bits != 0
                   : reinterpret_cast<const float*>(physical.data())[i] != 0.0f;
  });
}

engine::Task plan_keep_images(const std::byte* x, engine::Precision precision, const Extent& extent,
                              int images, float* dst) {
  const bool is_bf16 = precision == engine::Precision::bf16;
  const std::size_t values = static_cast<std::size_t>(images) * static_cast<std::size_t>(extent.count());
  engine::Task task;
  task.name = "keep images";
  task.reads = {{x, values * (is_bf16 ? sizeof(bf16) : sizeof(float))}};
  task.writes = {engine::bytes_of(dst, values)};
  task.start = [=](engine::Lane&) {
    if (is_bf16) {
      copy_images(reinterpret_cast<const bf16*>(x), extent, images, dst);
    } else {
      copy_images(reinterpret_cast<const float*>(x), extent, images, dst);
    }
  };
  return task;
}

}  // namespace cifar_mpi::cpu
