#include "cpu/augment.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cifar_mpi/engine/step_tasks.hpp"
#include "cpu/bf16.hpp"
#include "cpu/parallel.hpp"
#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {
namespace {

/// Bytes of a row summed at once: a multiple of 1, 2, 3 and 4 channels, so that each column of bytes belongs
/// to one channel.
constexpr int kColumns = 192;

/// One crop inside a source image.
struct Crop {
  const std::uint8_t* corner = nullptr;
  std::ptrdiff_t row_bytes = 0;
  int height = 0;
  int width = 0;
  int channels = 0;
};

struct Sums {
  std::uint32_t value[data::kMostChannels] = {};
  std::uint32_t square[data::kMostChannels] = {};
};

[[gnu::always_inline]] inline Sums sums_of(const Crop& crop) {
  Sums sums;
  const int bytes = crop.width * crop.channels;
  for (int begin = 0; begin < bytes; begin += kColumns) {
    const int columns = std::min(kColumns, bytes - begin);
    std::uint32_t value[kColumns] = {}, square[kColumns] = {};
    for (int y = 0; y < crop.height; ++y) {
      const std::uint8_t* row = crop.corner + y * crop.row_bytes + begin;
      for (int i = 0; i < columns; ++i) {
        const std::uint32_t v = row[i];
        value[i] += v;
        square[i] += v * v;
      }
    }
    for (int i = 0; i < columns; ++i) {
      sums.value[i % crop.channels] += value[i];
      sums.square[i % crop.channels] += square[i];
    }
  }
  return sums;
}

[[gnu::always_inline]] inline data::AffineMap map_of(const data::AugmentSpec& spec,
                                                     const data::AugmentDraw& draw, const Crop& crop) {
  if (spec.normalize == data::Normalize::dataset) return data::dataset_map(spec, draw);
  const Sums sums = sums_of(crop);
  return data::affine_map(sums.value, sums.square, crop.channels, crop.height * crop.width, draw.contrast,
                          [](double square) { return std::sqrt(square); });
}

/// out[c, y, x] = scale[c]·crop[y, x, c] + shift[c], optionally mirrored in x, and zero in the cutout;
/// kChannels is 0 when only known at run time.
template <class T, int kChannels>
struct Write {
  [[gnu::always_inline]] static void run(const data::AugmentSpec& spec, const data::AugmentDraw& draw,
                                         const Crop& crop, T* out) {
    const int channels = kChannels > 0 ? kChannels : crop.channels;
    const int pixels = crop.height * crop.width;
    const data::AffineMap map = map_of(spec, draw, crop);
    const std::ptrdiff_t step = draw.flip ? -channels : channels;
    const std::ptrdiff_t start = draw.flip ? (crop.width - 1) * channels : 0;
    for (int c = 0; c < channels; ++c) {
      for (int y = 0; y < crop.height; ++y) {
        const std::uint8_t* from = crop.corner + y * crop.row_bytes + start + c;
        T* to = out + c * pixels + y * crop.width;
        for (int x = 0; x < crop.width; ++x) {
          to[x] = from_float<T>(map.scale[c] * static_cast<float>(from[x * step]) + map.shift[c]);
        }
        if (spec.cutout == 0 || y < draw.cut_top || y >= draw.cut_top + spec.cutout) continue;
        std::fill(to + std::max(draw.cut_left, 0), to + std::min(draw.cut_left + spec.cutout, crop.width),
                  T{});
      }
    }
  }
};

template <class T>
auto choose_write(int channels) {
  return channels == 3 ? best_version<Write<T, 3>>() : best_version<Write<T, 0>>();
}

/// Buffers in which crops that leave their image are assembled, one per thread.
class Scratch {
 public:
  explicit Scratch(const data::AugmentSpec& spec)
      : crop_bytes_(spec.leaves_image() ? static_cast<std::size_t>(spec.output().count()) : 0),
        bytes_(crop_bytes_ * static_cast<std::size_t>(loop_threads())) {}
  std::uint8_t* of_this_thread() {
    return bytes_.data() + crop_bytes_ * static_cast<std::size_t>(loop_thread());
  }

 private:
  std::size_t crop_bytes_;
  std::vector<std::uint8_t> bytes_;
};

/// The crop, with fill values for pixels outside the image.
void assemble(const data::AugmentSpec& spec, const data::AugmentDraw& draw, const std::uint8_t* image,
              std::uint8_t* to) {
  const int channels = spec.source.channels;
  for (int y = 0; y < spec.crop_height; ++y) {
    const int row = data::source_of(draw.top + y, spec.source.height, spec.fill);
    for (int x = 0; x < spec.crop_width; ++x, to += channels) {
      const int column = data::source_of(draw.left + x, spec.source.width, spec.fill);
      const std::uint8_t* const from = image + (std::ptrdiff_t{row} * spec.source.width + column) * channels;
      for (int c = 0; c < channels; ++c) to[c] = row < 0 || column < 0 ? std::uint8_t{0} : from[c];
    }
  }
}

Crop crop_of(const data::AugmentSpec& spec, const data::AugmentDraw& draw, const engine::DataView& data,
             std::uint64_t sample, Scratch& scratch) {
  const std::ptrdiff_t row_bytes = static_cast<std::ptrdiff_t>(spec.source.width) * spec.source.channels;
  const std::uint8_t* image = data.images + sample * static_cast<std::uint64_t>(spec.source.count());
  const bool inside = draw.top >= 0 && draw.left >= 0 && draw.top + spec.crop_height <= spec.source.height &&
                      draw.left + spec.crop_width <= spec.source.width;
  const Extent out = spec.output();
  if (inside) {
    return {image + draw.top * row_bytes + draw.left * out.channels, row_bytes, out.height, out.width,
            out.channels};
  }
  std::uint8_t* const own = scratch.of_this_thread();
  assemble(spec, draw, image, own);
  return {own, std::ptrdiff_t{out.width} * out.channels, out.height, out.width, out.channels};
}

template <class T>
engine::Task plan_train(const engine::TrainBinding& binding, int batch, T* x, std::uint8_t* labels) {
  engine::Task task = engine::declare_train_input(binding, batch, sizeof(T), x, labels);
  const auto write = choose_write<T>(binding.augment.source.channels);
  task.start = [write, batch, x, labels, first = binding.first_sample, data = binding.data,
                order = binding.order, spec = binding.augment, seed = binding.seed, step = binding.step,
                scratch = Scratch(binding.augment)](engine::Lane&) mutable {
    const std::uint64_t now = *step;
    const std::ptrdiff_t values = spec.output().count();
    parallel_for(batch, [&](std::ptrdiff_t i) {
      const data::SampleRef sample = order.at(now, first + static_cast<std::uint64_t>(i));
      const data::AugmentDraw draw = draw_augment(spec, seed, sample.epoch, sample.id);
      write(spec, draw, crop_of(spec, draw, data, sample.local, scratch), x + i * values);
      labels[i] = data.labels[sample.local];
    });
  };
  return task;
}

template <class T>
engine::Task plan_evaluate(const engine::EvaluateBinding& binding, int batch, T* x, std::uint8_t* labels) {
  engine::Task task = engine::declare_evaluate_input(binding, batch, sizeof(T), x, labels);
  const auto write = choose_write<T>(binding.augment.source.channels);
  task.start = [write, batch, x, labels, data = binding.data, spec = binding.augment, cursor = binding.cursor,
                scratch = Scratch(binding.augment)](engine::Lane&) mutable {
    const std::uint64_t begin = *cursor;
    const std::ptrdiff_t values = spec.output().count();
    parallel_for(batch, [&](std::ptrdiff_t i) {
      const std::uint64_t sample = begin + static_cast<std::uint64_t>(i);
      T* to = x + i * values;
      if (sample < data.count) {
        const data::AugmentDraw draw = draw_augment(spec, 0, 0, sample);
        write(spec, draw, crop_of(spec, draw, data, sample, scratch), to);
        labels[i] = data.labels[sample];
      } else {
        std::fill(to, to + values, T{});
        labels[i] = kPaddingLabel;
      }
    });
    *cursor = begin + static_cast<std::uint64_t>(batch);
  };
  return task;
}

}  // namespace

engine::Task plan_train_input(const engine::TrainBinding& binding, int batch, engine::Precision precision,
                              std::byte* x, std::uint8_t* labels) {
  if (precision == engine::Precision::bf16)
    return plan_train(binding, batch, reinterpret_cast<bf16*>(x), labels);
  return plan_train(binding, batch, reinterpret_cast<float*>(x), labels);
}

engine::Task plan_evaluate_input(const engine::EvaluateBinding& binding, int batch,
                                 engine::Precision precision, std::byte* x, std::uint8_t* labels) {
  if (precision == engine::Precision::bf16)
    return plan_evaluate(binding, batch, reinterpret_cast<bf16*>(x), labels);
  return plan_evaluate(binding, batch, reinterpret_cast<float*>(x), labels);
}

}  // namespace cifar_mpi::cpu
