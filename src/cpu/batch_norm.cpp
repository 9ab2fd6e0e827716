#include "cpu/batch_norm.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "cifar_mpi/base/text.hpp"
#include "cpu/bf16.hpp"
#include "cpu/planning.hpp"
#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {
namespace {

/// kLanes neighbouring channels. Passed by reference: by value a vector's ABI depends on the instruction set.
template <int kLanes>
struct Vectors {
  typedef float Float __attribute__((vector_size(kLanes * sizeof(float))));
  typedef std::uint32_t Word __attribute__((vector_size(kLanes * sizeof(float))));
  typedef std::uint16_t Half __attribute__((vector_size(kLanes * sizeof(std::uint16_t))));
};
template <int kLanes>
using Vec = typename Vectors<kLanes>::Float;

template <int kLanes>
[[gnu::always_inline]] inline void load(const float* from, Vec<kLanes>& to) {
  std::memcpy(&to, from, sizeof(to));
}

template <int kLanes>
[[gnu::always_inline]] inline void load(const bf16* from, Vec<kLanes>& to) {
  typename Vectors<kLanes>::Half half;
  std::memcpy(&half, from, sizeof(half));
  const auto word = __builtin_convertvector(half, typename Vectors<kLanes>::Word) << 16;
  std::memcpy(&to, &word, sizeof(to));
}

template <int kLanes>
[[gnu::always_inline]] inline void store(const Vec<kLanes>& from, float* to) {
  std::memcpy(to, &from, sizeof(from));
}

/// To the nearest, ties to even; a NaN stays one.
template <int kLanes>
[[gnu::always_inline]] inline void store(const Vec<kLanes>& from, bf16* to) {
  typename Vectors<kLanes>::Word word;
  std::memcpy(&word, &from, sizeof(word));
  const auto rounded = (word + 0x7FFFu + ((word >> 16) & 1u)) >> 16;
  const auto kept = from == from ? rounded : (word >> 16) | 0x40u;
  const auto half = __builtin_convertvector(kept, typename Vectors<kLanes>::Half);
  std::memcpy(static_cast<void*>(to), &half, sizeof(half));
}

/// Where kLanes channels from `channel` on lie in the first pixel of an image; the next pixel is `block` further.
[[gnu::always_inline]] inline std::ptrdiff_t offset_of(const BatchNormShape& shape, int image, int block,
                                                       int channel) {
  const std::ptrdiff_t pixels = shape.pixels;
  return image * pixels * shape.channels + channel / block * pixels * block + channel % block;
}

/// What the loops over an image read besides activations.
struct ChannelMap {
  BatchNormShape shape;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const float* scale = nullptr;
  const float* biases = nullptr;
};

/// scale · (x − mean) · rstd + bias of kLanes channels.
template <int kLanes>
struct Map {
  Vec<kLanes> mean, rstd, scale, bias, slope;

  [[gnu::always_inline]] Map(const ChannelMap& channel_map, int channel) {
    load<kLanes>(channel_map.mean + channel, mean);
    load<kLanes>(channel_map.rstd + channel, rstd);
    load<kLanes>(channel_map.scale + channel, scale);
    load<kLanes>(channel_map.biases + channel, bias);
    slope = scale * rstd;
  }
};

/// Rows that are summed independently, so that additions need not wait for each other.
constexpr int kChains = 4;

/// Of each channel of one image: its mean, and the sum of squares around it.
template <class T, int kLanes>
struct Moments {
  [[gnu::always_inline]] static void run(const BatchNormShape& shape, int image, const std::byte* src,
                                         float* mean, float* squares) {
    for (int c = 0; c < shape.channels; c += kLanes) {
      const T* x = reinterpret_cast<const T*>(src) + offset_of(shape, image, shape.src_block, c);
      Vec<kLanes> around, sums[kChains] = {}, square_sums[kChains] = {};
      load<kLanes>(x, around);
      const auto add = [&](int chain, int pixel) __attribute__((always_inline)) {
        Vec<kLanes> value;
        load<kLanes>(x + static_cast<std::ptrdiff_t>(pixel) * shape.src_block, value);
        value -= around;
        sums[chain] += value;
        square_sums[chain] += value * value;
      };
      int p = 0;
      for (; p + kChains <= shape.pixels; p += kChains) {
#pragma GCC unroll 4
        for (int chain = 0; chain < kChains; ++chain) add(chain, p + chain);
      }
      for (; p < shape.pixels; ++p) add(0, p);
      const Vec<kLanes> sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      const Vec<kLanes> square_sum = (square_sums[0] + square_sums[1]) + (square_sums[2] + square_sums[3]);
      const Vec<kLanes> shift = sum / static_cast<float>(shape.pixels);
      store<kLanes>(around + shift, mean + c);
      store<kLanes>(square_sum - sum * shift, squares + c);
    }
  }
};

template <class T, int kLanes, bool kRelu>
struct Forward {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         std::byte* dst) {
    const BatchNormShape& shape = channel_map.shape;
    for (int c = 0; c < shape.channels; c += kLanes) {
      const T* x = reinterpret_cast<const T*>(src) + offset_of(shape, image, shape.src_block, c);
      T* y = reinterpret_cast<T*>(dst) + offset_of(shape, image, shape.dst_block, c);
      const Map<kLanes> map(channel_map, c);
      for (int p = 0; p < shape.pixels; ++p, x += shape.src_block, y += shape.dst_block) {
        Vec<kLanes> value;
        load<kLanes>(x, value);
        value = (value - map.mean) * map.slope + map.bias;
        if constexpr (kRelu) value = value < 0.0f ? Vec<kLanes>{} : value;
        store<kLanes>(value, y);
      }
    }
  }
};

/// The gradient of kLanes channels of one pixel behind the mask of the ReLU, and x − mean.
template <bool kRelu, int kLanes, class T>
[[gnu::always_inline]] inline void load_pair(const Map<kLanes>& map, const T* x, const T* g,
                                             Vec<kLanes>& centred, Vec<kLanes>& grad) {
  load<kLanes>(x, centred);
  load<kLanes>(g, grad);
  centred -= map.mean;
  if constexpr (kRelu) grad = centred * map.slope + map.bias > 0.0f ? grad : Vec<kLanes>{};
}

/// Σ g and Σ g·x̂ of each channel of one image.
template <class T, int kLanes, bool kRelu>
struct GradSums {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         const std::byte* grad_dst, float* sums, float* products) {
    const BatchNormShape& shape = channel_map.shape;
    for (int c = 0; c < shape.channels; c += kLanes) {
      const T* x = reinterpret_cast<const T*>(src) + offset_of(shape, image, shape.src_block, c);
      const T* g = reinterpret_cast<const T*>(grad_dst) + offset_of(shape, image, shape.dst_block, c);
      const Map<kLanes> map(channel_map, c);
      Vec<kLanes> sum[kChains] = {}, product[kChains] = {};
      const auto add = [&](int chain, std::ptrdiff_t pixel) __attribute__((always_inline)) {
        Vec<kLanes> centred, grad;
        load_pair<kRelu>(map, x + pixel * shape.src_block, g + pixel * shape.dst_block, centred, grad);
        sum[chain] += grad;
        product[chain] += grad * centred;
      };
      int p = 0;
      for (; p + kChains <= shape.pixels; p += kChains) {
#pragma GCC unroll 4
        for (int chain = 0; chain < kChains; ++chain) add(chain, p + chain);
      }
      for (; p < shape.pixels; ++p) add(0, p);
      store<kLanes>((sum[0] + sum[1]) + (sum[2] + sum[3]), sums + c);
      store<kLanes>(((product[0] + product[1]) + (product[2] + product[3])) * map.rstd, products + c);
    }
  }
};

/// `sums` and `products` are those of the batch, divided by n.
template <class T, int kLanes, bool kRelu>
struct GradSrc {
  [[gnu::always_inline]] static void run(const ChannelMap& channel_map, int image, const std::byte* src,
                                         const std::byte* grad_dst, const float* sums, const float* products,
                                         std::byte* grad_src) {
    const BatchNormShape& shape = channel_map.shape;
    for (int c = 0; c < shape.channels; c += kLanes) {
      const std::ptrdiff_t at = offset_of(shape, image, shape.src_block, c);
      const T* x = reinterpret_cast<const T*>(src) + at;
      const T* g = reinterpret_cast<const T*>(grad_dst) + offset_of(shape, image, shape.dst_block, c);
      T* grad_x = reinterpret_cast<T*>(grad_src) + at;
      const Map<kLanes> map(channel_map, c);
      Vec<kLanes> sum, product;
      load<kLanes>(sums + c, sum);
      load<kLanes>(products + c, product);
      product *= map.rstd;
      for (int p = 0; p < shape.pixels;
           ++p, x += shape.src_block, g += shape.dst_block, grad_x += shape.src_block) {
        Vec<kLanes> centred, grad;
        load_pair<kRelu>(map, x, g, centred, grad);
        store<kLanes>((grad - sum - centred * product) * map.slope, grad_x);
      }
    }
  }
};

/// `Loop` for the widest vector that fits both layouts.
template <template <class, int> class Loop, class T>
auto choose_lanes(const BatchNormShape& shape) {
  const int blocks[] = {shape.src_block, shape.dst_block};
  if (blocks[0] % 16 == 0 && blocks[1] % 16 == 0) return best_version<Loop<T, 16>>();
  if (blocks[0] % 8 == 0 && blocks[1] % 8 == 0) return best_version<Loop<T, 8>>();
  return best_version<Loop<T, 1>>();
}

template <template <class, int> class Loop>
auto choose(const BatchNormLayer& layer) {
  return layer.precision == engine::Precision::bf16 ? choose_lanes<Loop, bf16>(layer.shape)
                                                    : choose_lanes<Loop, float>(layer.shape);
}

template <template <class, int, bool> class Loop>
struct WithRelu {
  template <class T, int kLanes>
  using Yes = Loop<T, kLanes, true>;
  template <class T, int kLanes>
  using No = Loop<T, kLanes, false>;
};

template <template <class, int, bool> class Loop>
auto choose_with_relu(const BatchNormLayer& layer) {
  return layer.relu ? choose<WithRelu<Loop>::template Yes>(layer)
                    : choose<WithRelu<Loop>::template No>(layer);
}

/// The moments of the batch, from the images' means and sums of squares.
struct BatchMoments {
  double mean = 0.0;
  double variance = 0.0;
};
BatchMoments merged(const BatchNormShape& shape, const float* partials, std::size_t channel) {
  const auto channels = static_cast<std::size_t>(shape.channels);
  const auto batch = static_cast<std::size_t>(shape.batch);
  const auto partial = [&](std::size_t image, std::size_t which) {
    return static_cast<double>(partials[(2 * image + which) * channels + channel]);
  };
  BatchMoments all;
  for (std::size_t n = 0; n < batch; ++n) all.mean += partial(n, 0);
  all.mean /= shape.batch;
  double within = 0.0, between = 0.0;
  for (std::size_t n = 0; n < batch; ++n) {
    const double shift = partial(n, 0) - all.mean;
    within += partial(n, 1);
    between += shift * shift;
  }
  all.variance = (within / shape.pixels + between) / shape.batch;
  return all;
}

float rstd_of(double variance, float epsilon) {
  return static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(epsilon)));
}

ChannelMap map_of(const BatchNormLayer& layer, const float* moments) {
  return {layer.shape, moments, moments + layer.shape.channels, layer.scale, layer.biases};
}

engine::Bytes activation(const std::byte* data, const BatchNormLayer& layer) {
  const BatchNormShape& shape = layer.shape;
  const std::size_t bytes = layer.precision == engine::Precision::bf16 ? sizeof(bf16) : sizeof(float);
  return {data, bytes * static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(shape.pixels) *
                    static_cast<std::size_t>(shape.channels)};
}

std::size_t channels_of(const BatchNormLayer& layer) {
  return static_cast<std::size_t>(layer.shape.channels);
}

engine::Task begin_task(const BatchNormLayer& layer, const char* what, const std::byte* src) {
  const BatchNormShape& shape = layer.shape;
  if (shape.batch < 1 || shape.pixels < 1 || shape.channels < 1 || shape.src_block < 1 ||
      shape.dst_block < 1 || shape.channels % shape.src_block != 0 || shape.channels % shape.dst_block != 0) {
    throw std::logic_error(concat(layer.name, ": blocks of ", shape.src_block, " and ", shape.dst_block,
                                  " do not divide ", shape.channels, " channels"));
  }
  engine::Task task;
  task.name = concat(layer.name, ' ', what);
  task.reads = {activation(src, layer), engine::bytes_of(layer.scale, channels_of(layer)),
                engine::bytes_of(layer.biases, channels_of(layer))};
  return task;
}

}  // namespace

std::size_t moments_floats(const BatchNormShape& shape) {
  return 2 * static_cast<std::size_t>(shape.channels);
}
std::size_t partials_floats(const BatchNormShape& shape) {
  return (static_cast<std::size_t>(shape.batch) + 1) * moments_floats(shape);
}

engine::Task plan_batch_norm_forward(const BatchNormLayer& layer, const std::byte* src, std::byte* dst,
                                     float* moments, float* partials, float* mean, float* variance,
                                     float share) {
  const std::size_t channels = channels_of(layer);
  engine::Task task = begin_task(layer, "forward", src);
  task.writes = {activation(dst, layer), engine::bytes_of(moments, moments_floats(layer.shape)),
                 engine::bytes_of(partials, partials_floats(layer.shape)), engine::bytes_of(mean, channels),
                 engine::bytes_of(variance, channels)};
  task.start = [=, map = map_of(layer, moments), epsilon = layer.epsilon, moments_of = choose<Moments>(layer),
                apply = choose_with_relu<Forward>(layer)](engine::Lane&) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < map.shape.batch; ++n) {
      float* const own = partials + static_cast<std::size_t>(n) * 2 * channels;
      moments_of(map.shape, n, src, own, own + channels);
    }
    for (std::size_t c = 0; c < channels; ++c) {
      const BatchMoments all = merged(map.shape, partials, c);
      moments[c] = static_cast<float>(all.mean);
      moments[channels + c] = rstd_of(all.variance, epsilon);
      mean[c] = share * static_cast<float>(all.mean);
      variance[c] = share * static_cast<float>(all.variance);
    }
#pragma omp parallel for schedule(static)
    for (int n = 0; n < map.shape.batch; ++n) apply(map, n, src, dst);
  };
  return task;
}

engine::Task plan_batch_norm_inference(const BatchNormLayer& layer, const std::byte* src, std::byte* dst,
                                       float* moments, const float* mean, const float* variance) {
  const std::size_t channels = channels_of(layer);
  engine::Task task = begin_task(layer, "forward", src);
  task.reads.insert(task.reads.end(),
                    {engine::bytes_of(mean, channels), engine::bytes_of(variance, channels)});
  task.writes = {activation(dst, layer), engine::bytes_of(moments, moments_floats(layer.shape))};
  task.start = [=, map = map_of(layer, moments), epsilon = layer.epsilon,
                apply = choose_with_relu<Forward>(layer)](engine::Lane&) {
    for (std::size_t c = 0; c < channels; ++c) {
      moments[c] = mean[c];
      moments[channels + c] = rstd_of(static_cast<double>(variance[c]), epsilon);
    }
#pragma omp parallel for schedule(static)
    for (int n = 0; n < map.shape.batch; ++n) apply(map, n, src, dst);
  };
  return task;
}

engine::Task plan_batch_norm_backward(const BatchNormLayer& layer, const std::byte* src,
                                      const std::byte* grad_dst, const float* moments, float* partials,
                                      float* grad_scale, float* grad_biases, std::byte* grad_src) {
  const std::size_t channels = channels_of(layer);
  engine::Task task = begin_task(layer, "backward", src);
  task.reads.insert(task.reads.end(),
                    {activation(grad_dst, layer), engine::bytes_of(moments, moments_floats(layer.shape))});
  task.writes = {engine::bytes_of(partials, partials_floats(layer.shape))};
  for (const float* grad : {grad_scale, grad_biases}) {
    if (grad != nullptr) task.writes.push_back(engine::bytes_of(grad, channels));
  }
  if (grad_src != nullptr) task.writes.push_back(activation(grad_src, layer));
  task.start = [=, map = map_of(layer, moments), sums_of = choose_with_relu<GradSums>(layer),
                apply = choose_with_relu<GradSrc>(layer)](engine::Lane&) {
    const auto batch = static_cast<std::size_t>(map.shape.batch);
#pragma omp parallel for schedule(static)
    for (int n = 0; n < map.shape.batch; ++n) {
      float* const own = partials + static_cast<std::size_t>(n) * 2 * channels;
      sums_of(map, n, src, grad_dst, own, own + channels);
    }
    float* const means = partials + batch * 2 * channels;
    for (std::size_t c = 0; c < 2 * channels; ++c) {
      double sum = 0.0;
      for (std::size_t n = 0; n < batch; ++n) sum += static_cast<double>(partials[n * 2 * channels + c]);
      means[c] = static_cast<float>(sum / (static_cast<double>(batch) * map.shape.pixels));
      float* const grad = c < channels ? grad_biases : grad_scale;
      if (grad != nullptr) grad[c % channels] = static_cast<float>(sum);
    }
    if (grad_src == nullptr) return;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < map.shape.batch; ++n) apply(map, n, src, grad_dst, means, means + channels, grad_src);
  };
  return task;
}

namespace {

class BatchNormGroup final : public PlannedGroup {
 public:
  BatchNormGroup(Planning& planning, const model::BatchNorm& layer, const BatchNormShape& shape,
                 const Desc& src, const Desc& dst, bool relu)
      : PlannedGroup(planning), epsilon_(layer.epsilon), shape_(shape), relu_(relu) {
    const auto channels = static_cast<std::size_t>(shape.channels);
    contract_.name = layer.name;
    contract_.operations = relu ? 2 : 1;
    contract_.src = {planning.formats(src)};
    contract_.dst = planning.formats(dst);
    contract_.masters = {channels, channels, channels, channels};
    contract_.grad_on_src = true;
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena& arena) const override {
    enum { kScale, kBiases, kMean, kVariance };
    const std::vector<engine::ParamPlace>& params = operands.params;
    const BatchNormLayer layer{
        name(), shape_, planning_.precision, epsilon_, relu_, params[kScale].master, params[kBiases].master};
    auto* const moments = arena.take_array<float>(moments_floats(shape_));
    engine::GroupTasks tasks;
    if (!operands.training) {
      tasks.forward.push_back(plan_batch_norm_inference(layer, operands.src[0], operands.dst, moments,
                                                        params[kMean].master, params[kVariance].master));
      return tasks;
    }
    tasks.forward.push_back(plan_batch_norm_forward(
        layer, operands.src[0], operands.dst, moments, arena.take_array<float>(partials_floats(shape_)),
        params[kMean].grad, params[kVariance].grad, operands.statistics_share));
    if (operands.grad_src[0] == nullptr && params[kScale].grad == nullptr) return tasks;
    tasks.backward.push_back(plan_batch_norm_backward(
        layer, operands.src[0], operands.grad_dst, moments, arena.take_array<float>(partials_floats(shape_)),
        params[kScale].grad, params[kBiases].grad, operands.grad_src[0]));
    return tasks;
  }

  void to_logical(std::size_t, std::span<const float> physical, std::span<float> logical) const override {
    std::copy_n(physical.begin(), logical.size(), logical.begin());
  }
  void from_logical(std::size_t, std::span<const float> logical, std::span<float> physical) const override {
    std::fill(std::copy(logical.begin(), logical.end(), physical.begin()), physical.end(), 0.0f);
  }

 private:
  float epsilon_;
  BatchNormShape shape_;
  bool relu_;
};

}  // namespace

/// From the format as it lies, where it is one that the loops know, to NHWC.
PlannedGroupPtr plan_batch_norm_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::BatchNorm>(0);
  if (layer == nullptr) return nullptr;
  const Extent& extent = chain.in();
  const Desc nhwc = planning.nhwc(extent);
  Desc src = planning.desc(chain.inputs[0].value);
  int block = planning.block_of(src, extent);
  if (block == 0) {
    src = nhwc;
    block = extent.channels;
  }
  const BatchNormShape shape{planning.batch, extent.height * extent.width, extent.channels, block,
                             extent.channels};
  return std::make_unique<BatchNormGroup>(planning, *layer, shape, src, nhwc,
                                          chain.as<model::Relu>(1) != nullptr);
}

}  // namespace cifar_mpi::cpu
