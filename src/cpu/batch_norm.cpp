#include "cpu/batch_norm.hpp"

#include <cmath>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "cpu/batch_norm_loops.hpp"
#include "cpu/bf16.hpp"
#include "cpu/parallel.hpp"
#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {
namespace {

using namespace batch_norm;

/// `Loop` for the widest spans that fit both layouts and the vectors; rare layouts have narrow ones, because each takes
/// seconds to compile. With spans wider than the vectors, compilers take selections apart into single values.
template <template <class> class Loop, class T>
auto choose_span(const BatchNormShape& shape) {
  constexpr bool kFp32 = std::is_same_v<T, float>;
  const int lanes = lanes_of(vector_sets_here().back());
  const auto fits = [&](int values) {
    return shape.src_block % values == 0 && shape.dst_block % values == 0;
  };
  using One = Loop<Span<T, 1, 1>>;
  using Eight = Loop<Span<T, kFp32 ? 8 : 4, 1>>;
  if (fits(kFp32 ? lanes : 2 * lanes))
    return best_version<Loop<Span<T, 4, 1>>, Loop<Span<T, 8, 1>>, Loop<Span<T, 16, 1>>>();
  if constexpr (!kFp32) {
    const bool pairs = shape.src_block == lanes && shape.dst_block == lanes && shape.pixels % 2 == 0;
    if (pairs && lanes > 4) return best_version<One, Loop<Span<T, 8, 2>>, Loop<Span<T, 16, 2>>>();
  }
  if constexpr (!kFp32) {
    if (lanes == 16 && fits(16)) return best_version<One, Eight, Loop<Span<T, 16, 1, 1>>>();
  }
  return fits(8) ? best_version<One, Eight>() : best_version<One>();
}

template <template <class> class Loop>
auto choose(const BatchNormLayer& layer) {
  return layer.precision == engine::Precision::bf16 ? choose_span<Loop, bf16>(layer.shape)
                                                    : choose_span<Loop, float>(layer.shape);
}

template <template <class, Activation> class Loop>
struct With {
  template <class S>
  using None = Loop<S, Activation::none>;
  template <class S>
  using Relu = Loop<S, Activation::relu>;
  template <class S>
  using Silu = Loop<S, Activation::silu>;
};

template <template <class, Activation> class Loop>
auto choose_with(Activation then, const BatchNormLayer& layer) {
  switch (then) {
    case Activation::relu:
      return choose<With<Loop>::template Relu>(layer);
    case Activation::silu:
      return choose<With<Loop>::template Silu>(layer);
    case Activation::none:
      break;
  }
  return choose<With<Loop>::template None>(layer);
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
  task.reads = {activation(src, layer), engine::bytes_of(layer.biases, channels_of(layer))};
  if (layer.scale != nullptr) task.reads.push_back(engine::bytes_of(layer.scale, channels_of(layer)));
  return task;
}

}  // namespace

std::size_t moments_floats(const BatchNormShape& shape) {
  return 2 * static_cast<std::size_t>(shape.channels);
}
std::size_t partials_floats(const BatchNormShape& shape) {
  return (static_cast<std::size_t>(shape.batch) + 1) * moments_floats(shape);
}

namespace {

template <class S, Activation kThen>
using ApplyAlone = Apply<S, kThen, false>;
template <class S>
using ApplyWithSum = Apply<S, Activation::relu, true>;

/// The loop over the images that computes y.
auto plan_apply(const BatchNormLayer& layer, const ChannelMap& map, const BatchNormForward& memory) {
  return [=, apply = memory.other == nullptr ? choose_with<ApplyAlone>(layer.then, layer)
                                             : choose<ApplyWithSum>(layer)] {
    parallel_for(map.shape.batch, [&](std::ptrdiff_t n) {
      apply(map, static_cast<int>(n), memory.src, memory.other, memory.dst);
    });
  };
}

engine::Task begin_forward(const BatchNormLayer& layer, const BatchNormForward& memory) {
  engine::Task task = begin_task(layer, "forward", memory.src);
  if (memory.other != nullptr) task.reads.push_back(activation(memory.other, layer));
  task.writes = {activation(memory.dst, layer),
                 engine::bytes_of(memory.moments, moments_floats(layer.shape))};
  return task;
}

}  // namespace

namespace {

/// The loop over the images that stores the moments of each at `partials`, and then calls `use` for each channel with
/// those of the batch.
template <class Use>
auto plan_moments(const BatchNormLayer& layer, const BatchNormForward& memory, const Use& use) {
  return [memory, use, shape = layer.shape, moments_of = choose<Moments>(layer)] {
    const auto channels = static_cast<std::size_t>(shape.channels);
    parallel_for(shape.batch, [&](std::ptrdiff_t n) {
      float* const own = memory.partials + static_cast<std::size_t>(n) * 2 * channels;
      moments_of(shape, static_cast<int>(n), memory.src, own, own + channels);
    });
    parallel_for(shape.channels, [&](std::ptrdiff_t channel) {
      const auto c = static_cast<std::size_t>(channel);
      use(c, merged(shape, memory.partials, c));
    });
  };
}

/// Stores the moments of a channel for the loops and for the running statistics.
auto store_moments(const BatchNormLayer& layer, float* moments, float* mean, float* variance, float share) {
  return [=, channels = channels_of(layer), epsilon = layer.epsilon](std::size_t c, const BatchMoments& all) {
    moments[c] = static_cast<float>(all.mean);
    moments[channels + c] = rstd_of(all.variance, epsilon);
    mean[c] = share * static_cast<float>(all.mean);
    variance[c] = share * static_cast<float>(all.variance);
  };
}

}  // namespace

engine::Task plan_batch_norm_forward(const BatchNormLayer& layer, const BatchNormForward& memory, float* mean,
                                     float* variance, float share) {
  const std::size_t channels = channels_of(layer);
  engine::Task task = begin_forward(layer, memory);
  task.writes.insert(task.writes.end(),
                     {engine::bytes_of(memory.partials, partials_floats(layer.shape)),
                      engine::bytes_of(mean, channels), engine::bytes_of(variance, channels)});
  task.start = [find =
                    plan_moments(layer, memory, store_moments(layer, memory.moments, mean, variance, share)),
                apply = plan_apply(layer, map_of(layer, memory.moments), memory)](engine::Lane&) {
    find();
    apply();
  };
  return task;
}

std::vector<engine::Task> plan_batch_norm_forward(const BatchNormLayer& layer, const BatchNormForward& memory,
                                                  float* mean, float* variance, float share,
                                                  const float* around, const engine::RankSums& sums) {
  const std::size_t channels = channels_of(layer);
  const engine::Bytes summed = engine::bytes_of(sums.memory, 2 * channels);
  const auto add = [=, sum = sums.memory](std::size_t c, const BatchMoments& all) {
    const double shift = all.mean - static_cast<double>(around[c]);
    sum[c] = static_cast<float>(shift);
    sum[channels + c] = static_cast<float>(all.variance + shift * shift);
  };
  engine::Task moments;
  moments.name = layer.name + " moments";
  moments.reads = {activation(memory.src, layer), engine::bytes_of(around, channels)};
  moments.writes = {engine::bytes_of(memory.partials, partials_floats(layer.shape)), summed};
  moments.start = [find = plan_moments(layer, memory, add)](engine::Lane&) { find(); };

  engine::Task forward = begin_forward(layer, memory);
  forward.reads.insert(forward.reads.end(), {engine::bytes_of(around, channels), summed});
  forward.writes.insert(forward.writes.end(),
                        {engine::bytes_of(mean, channels), engine::bytes_of(variance, channels)});
  forward.start = [=, store = store_moments(layer, memory.moments, mean, variance, share),
                   apply = plan_apply(layer, map_of(layer, memory.moments), memory)](engine::Lane&) {
    for (std::size_t c = 0; c < channels; ++c) {
      const double shift = static_cast<double>(sums.memory[c]) / sums.ranks;
      const double rest = static_cast<double>(sums.memory[channels + c]) / sums.ranks - shift * shift;
      store(c, {static_cast<double>(around[c]) + shift, rest < 0.0 ? 0.0 : rest});  // NaN stays NaN
    }
    apply();
  };
  return {std::move(moments),
          engine::sum_over_ranks(layer.name + " moments of all ranks", sums, 2 * channels),
          std::move(forward)};
}

engine::Task plan_batch_norm_inference(const BatchNormLayer& layer, const BatchNormForward& memory,
                                       const float* mean, const float* variance) {
  const std::size_t channels = channels_of(layer);
  engine::Task task = begin_forward(layer, memory);
  task.reads.insert(task.reads.end(),
                    {engine::bytes_of(mean, channels), engine::bytes_of(variance, channels)});
  task.start = [=, epsilon = layer.epsilon,
                apply = plan_apply(layer, map_of(layer, memory.moments), memory)](engine::Lane&) {
    for (std::size_t c = 0; c < channels; ++c) {
      memory.moments[c] = mean[c];
      memory.moments[channels + c] = rstd_of(static_cast<double>(variance[c]), epsilon);
    }
    apply();
  };
  return task;
}

namespace {

template <class S>
using JoinedOne = JoinedGradSums<S, false>;
template <class S>
using JoinedTwo = JoinedGradSums<S, true>;

/// The loop over the images that stores the sums of each at `partials`.
auto plan_sums(const BatchNormLayer& layer, const ChannelMap& map, const BatchNormBackward& memory) {
  return [=, plain = choose_with<GradSums>(layer.then, layer),
          joined = memory.more_grad_dst != nullptr ? choose<JoinedTwo>(layer) : choose<JoinedOne>(layer)] {
    const auto channels = static_cast<std::size_t>(map.shape.channels);
    parallel_for(map.shape.batch, [&](std::ptrdiff_t image) {
      const int n = static_cast<int>(image);
      float* const own = memory.partials + static_cast<std::size_t>(n) * 2 * channels;
      if (memory.dst == nullptr) {
        plain(map, n, memory.src, memory.grad_dst, memory.joined, own, own + channels);
      } else {
        joined(map, n, memory.src, memory.dst, memory.grad_dst, memory.more_grad_dst, memory.joined, own,
               own + channels);
      }
    });
  };
}

engine::Task begin_sums(const BatchNormLayer& layer, const char* what, const BatchNormBackward& memory) {
  engine::Task task = begin_task(layer, what, memory.src);
  task.reads.push_back(engine::bytes_of(memory.moments, moments_floats(layer.shape)));
  for (const std::byte* const read : {memory.grad_dst, memory.more_grad_dst, memory.dst}) {
    if (read != nullptr) task.reads.push_back(activation(read, layer));
  }
  task.writes = {engine::bytes_of(memory.partials, partials_floats(layer.shape))};
  for (const float* const grad : {memory.grad_scale, memory.grad_biases}) {
    if (grad != nullptr) task.writes.push_back(engine::bytes_of(grad, channels_of(layer)));
  }
  if (memory.joined != nullptr) task.writes.push_back(activation(memory.joined, layer));
  return task;
}

/// The two sums of the batch, of all images' at `partials`; stores them as the gradients of the parameters, and calls
/// `use(place, sum)` for each place in [2, channels].
template <class Use>
auto plan_batch_sums(const BatchNormLayer& layer, const BatchNormBackward& memory, const Use& use) {
  return
      [memory, use, shape = layer.shape, sum_up = plan_sums(layer, map_of(layer, memory.moments), memory)] {
        const auto channels = static_cast<std::size_t>(shape.channels);
        sum_up();
        parallel_for(2 * shape.channels, [&](std::ptrdiff_t place) {
          const auto c = static_cast<std::size_t>(place);
          double sum = 0.0;
          for (std::size_t n = 0; n < static_cast<std::size_t>(shape.batch); ++n)
            sum += static_cast<double>(memory.partials[n * 2 * channels + c]);
          use(c, sum);
          float* const grad = c < channels ? memory.grad_biases : memory.grad_scale;
          if (grad != nullptr) grad[c % channels] = static_cast<float>(sum);
        });
      };
}

/// The gradient of y, or g if that is in memory.
const std::byte* incoming(const BatchNormBackward& memory) {
  return memory.joined == nullptr ? memory.grad_dst : memory.joined;
}

template <class S>
using GradSrcPlain = GradSrc<S, Activation::none>;
template <class S>
using GradSrcMasked = GradSrc<S, Activation::relu>;

/// The loop over the images that computes the gradient of x; `means` [2, channels] are the sums divided by n.
auto plan_grad_src(const BatchNormLayer& layer, const BatchNormBackward& memory, const float* means) {
  const bool masks = layer.then == Activation::relu && memory.joined == nullptr;
  ChannelMap map = map_of(layer, memory.moments);
  if (layer.then == Activation::silu) map.shape.dst_block = map.shape.src_block;  // of g
  return [=, apply = masks ? choose<GradSrcMasked>(layer) : choose<GradSrcPlain>(layer)] {
    parallel_for(map.shape.batch, [&](std::ptrdiff_t n) {
      apply(map, static_cast<int>(n), memory.src, incoming(memory), means, means + map.shape.channels,
            memory.grad_src);
    });
  };
}

float* means_of(const BatchNormLayer& layer, const BatchNormBackward& memory) {
  return memory.partials + static_cast<std::size_t>(layer.shape.batch) * moments_floats(layer.shape);
}

double values_per_channel(const BatchNormLayer& layer) {
  return static_cast<double>(layer.shape.batch) * layer.shape.pixels;
}

}  // namespace

engine::Task plan_batch_norm_backward(const BatchNormLayer& layer, const BatchNormBackward& memory) {
  engine::Task task = begin_sums(layer, "backward", memory);
  if (memory.grad_src != nullptr) task.writes.push_back(activation(memory.grad_src, layer));
  float* const means = means_of(layer, memory);
  const auto divide = [means, n = values_per_channel(layer)](std::size_t place, double sum) {
    means[place] = static_cast<float>(sum / n);
  };
  task.start = [sum_up = plan_batch_sums(layer, memory, divide), apply = plan_grad_src(layer, memory, means),
                has_src = memory.grad_src != nullptr](engine::Lane&) {
    sum_up();
    if (has_src) apply();
  };
  return task;
}

std::vector<engine::Task> plan_batch_norm_backward(const BatchNormLayer& layer,
                                                   const BatchNormBackward& memory,
                                                   const engine::RankSums& sums) {
  if (memory.grad_src == nullptr) return {plan_batch_norm_backward(layer, memory)};
  const std::size_t floats = moments_floats(layer.shape);
  const engine::Bytes summed = engine::bytes_of(sums.memory, floats);
  engine::Task gradient_sums = begin_sums(layer, "gradient sums", memory);
  gradient_sums.writes.push_back(summed);
  const auto add = [to = sums.memory](std::size_t place, double sum) { to[place] = static_cast<float>(sum); };
  gradient_sums.start = [sum_up = plan_batch_sums(layer, memory, add)](engine::Lane&) { sum_up(); };

  float* const means = means_of(layer, memory);
  engine::Task backward = begin_task(layer, "backward", memory.src);
  backward.reads.insert(backward.reads.end(), {engine::bytes_of(memory.moments, floats), summed,
                                               activation(incoming(memory), layer)});
  backward.writes = {engine::bytes_of(means, floats), activation(memory.grad_src, layer)};
  backward.start = [=, n = values_per_channel(layer) * sums.ranks,
                    apply = plan_grad_src(layer, memory, means)](engine::Lane&) {
    for (std::size_t place = 0; place < floats; ++place)
      means[place] = static_cast<float>(static_cast<double>(sums.memory[place]) / n);
    apply();
  };
  return {std::move(gradient_sums),
          engine::sum_over_ranks(layer.name + " gradient sums of all ranks", sums, floats),
          std::move(backward)};
}

}  // namespace cifar_mpi::cpu
