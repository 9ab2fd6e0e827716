#include "cpu/image_conv/image_conv.hpp"

#include <algorithm>

#include "cpu/bf16.hpp"
#include "cpu/parallel.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Bytes;
using engine::bytes_of;
using engine::Lane;
using engine::Task;

constexpr int kPieceImages = 16;  ///< of each thread, as in pieces.hpp

Bytes images_of(const ImageConv& conv, const std::byte* images) {
  return {images, static_cast<std::size_t>(conv.batch) * conv.shape.image_values() * conv.value_bytes()};
}
Bytes pooled_of(const ImageConv& conv, const std::byte* pooled) {
  return {pooled, conv.choices() * conv.value_bytes()};
}

/// Calls `images(part, range)` for all images, piece by piece; within a piece every part has a range that is
/// the same in each run. Makes progress on the lane after each piece.
template <class Body>
void for_all_images(const ImageConv& conv, Lane& lane, const Body& images) {
  const int piece = kPieceImages * conv.threads;
  for (int first = 0; first < conv.batch; first += piece) {
    parallel_parts(std::min(piece, conv.batch - first), conv.threads, [&](int part, Range range) {
      images(part, Range{first + range.begin, first + range.end});
    });
    lane.make_progress();
  }
}

/// sum += each of `parts` arrays at distance `step`, in order.
void add(const float* parts, int count, std::size_t step, float* sum, std::size_t floats) {
  parallel_values(floats, [=](std::size_t begin, std::size_t end) {
    for (int part = 0; part < count; ++part) {
      const float* const from = parts + static_cast<std::size_t>(part) * step;
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) sum[i] += from[i];
    }
  });
}

/// Multiplications performed: rows of taps inside the image, each over its whole width.
double forward_flops(const ImageConv& conv) {
  const ImageConvShape& s = conv.shape;
  const int before = model::centred_padding(s.in.height, s.kernel, 1).before;
  double rows = 0.0;
  for (int y = 0; y < s.in.height; ++y)
    rows += std::min(s.kernel, s.in.height + before - y) - std::max(0, before - y);
  return 2.0 * conv.batch * rows * s.in.width * s.kernel * s.in.channels * s.out_channels;
}
/// One multiplication per pooled place and tap.
double gradient_flops(const ImageConv& conv) {
  const Extent pooled = conv.shape.pooled();
  return 2.0 * conv.batch * pooled.height * pooled.width * static_cast<double>(conv.shape.weight_floats());
}

}  // namespace

Task plan_image_conv_weights(const std::string& name, const ImageConv& conv, const float* weights,
                             float* rounded) {
  const std::size_t count = conv.shape.weight_floats();
  const auto round = [=](Lane&) {
    for (std::size_t i = 0; i < count; ++i) rounded[i] = to_float(to_bf16(weights[i]));
  };
  return {name, {bytes_of(weights, count)}, {bytes_of(rounded, count)}, round, {}};
}

Task plan_image_conv_forward(const std::string& name, const ImageConv& conv, const ImageConvMemory& memory,
                             const float* weights, const float* biases) {
  Task task;
  task.name = name;
  task.reads = {images_of(conv, memory.src), bytes_of(weights, conv.shape.weight_floats())};
  if (biases != nullptr)
    task.reads.push_back(bytes_of(biases, static_cast<std::size_t>(conv.shape.out_channels)));
  task.writes = {pooled_of(conv, memory.dst), bytes_of(memory.scratch, conv.forward_scratch())};
  if (memory.choices != nullptr) task.writes.push_back(bytes_of(memory.choices, conv.choices()));
  task.cost.flops = forward_flops(conv);
  task.start = [=](Lane& lane) {
    const ImageConvShape& shape = conv.shape;
    const std::size_t image = shape.image_values(), pooled = shape.pooled_values();
    const std::size_t scratch = conv.forward.scratch_floats(shape);
    for_all_images(conv, lane, [&](int part, Range range) {
      float* const own = memory.scratch + static_cast<std::size_t>(part) * scratch;
      for (auto at = static_cast<std::size_t>(range.begin); at < static_cast<std::size_t>(range.end); ++at) {
        conv.forward.run(shape, memory.src + at * image * conv.value_bytes(), weights, biases, own,
                         memory.dst + at * pooled * conv.value_bytes(),
                         memory.choices == nullptr ? nullptr : memory.choices + at * pooled);
      }
    });
  };
  return task;
}

Task plan_image_conv_gradient(const std::string& name, const ImageConv& conv, const ImageConvMemory& memory,
                              float* grad_weights, float* grad_biases) {
  const std::size_t weights = conv.shape.weight_floats();
  const auto biases = static_cast<std::size_t>(conv.shape.out_channels);
  Task task;
  task.name = name;
  task.reads = {images_of(conv, memory.src), pooled_of(conv, memory.grad_dst),
                bytes_of(memory.choices, conv.choices())};
  task.writes = {bytes_of(memory.scratch, conv.gradient_scratch()), bytes_of(grad_weights, weights)};
  if (grad_biases != nullptr) task.writes.push_back(bytes_of(grad_biases, biases));
  if (conv.threads > 1) task.writes.push_back(bytes_of(memory.partial, conv.partial_floats()));
  task.cost.flops = gradient_flops(conv);
  task.start = [=](Lane& lane) {
    const ImageConvShape& shape = conv.shape;
    const std::size_t image = shape.image_values(), pooled = shape.pooled_values();
    const std::size_t scratch = conv.gradient.scratch_floats(shape);
    const std::size_t step = weights + biases;
    parallel_values(weights, [=](std::size_t begin, std::size_t end) {
      std::fill(grad_weights + begin, grad_weights + end, 0.0f);
    });
    if (grad_biases != nullptr) std::fill_n(grad_biases, biases, 0.0f);
    parallel_values(conv.partial_floats(), [&](std::size_t begin, std::size_t end) {
      std::fill(memory.partial + begin, memory.partial + end, 0.0f);
    });
    for_all_images(conv, lane, [&](int part, Range range) {
      float* sum_weights = grad_weights;
      float* sum_biases = grad_biases;
      if (part > 0) {
        sum_weights = memory.partial + static_cast<std::size_t>(part - 1) * step;
        if (grad_biases != nullptr) sum_biases = sum_weights + weights;
      }
      float* const own = memory.scratch + static_cast<std::size_t>(part) * scratch;
      for (auto at = static_cast<std::size_t>(range.begin); at < static_cast<std::size_t>(range.end); ++at) {
        conv.gradient.run(shape, memory.src + at * image * conv.value_bytes(),
                          memory.grad_dst + at * pooled * conv.value_bytes(), memory.choices + at * pooled,
                          own, sum_weights, sum_biases);
      }
    });
    add(memory.partial, conv.threads - 1, step, grad_weights, weights);
    if (grad_biases != nullptr) add(memory.partial + weights, conv.threads - 1, step, grad_biases, biases);
  };
  return task;
}

}  // namespace cifar_mpi::cpu
