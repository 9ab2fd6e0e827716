#include "cpu/augment.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cifar_mpi/data/downsample.hpp"
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

/// The weights with which an axis of a crop is downsampled.
class Axis {
 public:
  Axis(int in, int out) {
    for (int to = 0; to < out; ++to) {
      const data::Taps taps = data::taps_of(in, out, to);
      places_.push_back({taps.first, taps.count, weights_.size()});
      for (int from = taps.first; from < taps.first + taps.count; ++from) {
        const double weight = data::tap_weight(in, out, to, from);
        weights_.push_back(static_cast<float>(weight / taps.sum));
      }
    }
  }
  int size() const { return static_cast<int>(places_.size()); }
  /// Calls add(weight, from) for each value that value `to` is a mean of.
  template <class Add>
  [[gnu::always_inline]] void visit(int to, const Add& add) const {
    const Place& place = places_[static_cast<std::size_t>(to)];
    for (int i = 0; i < place.count; ++i)
      add(weights_[place.first_weight + static_cast<std::size_t>(i)], place.first + i);
  }

 private:
  struct Place {
    int first = 0;
    int count = 0;
    std::size_t first_weight = 0;
  };
  std::vector<Place> places_;
  std::vector<float> weights_;
};

/// crop [channels, side, side] becomes out [channels, size, size], first along its columns, then along its rows; `row`
/// [side] is scratch.
template <class T>
struct Downsample {
  [[gnu::always_inline]] static void run(const Axis& axis, int side, int channels, const float* crop,
                                         float* row, T* out) {
    for (int c = 0; c < channels; ++c, crop += side * side) {
      for (int y = 0; y < axis.size(); ++y, out += axis.size()) {
        std::fill_n(row, side, 0.0f);
        axis.visit(y, [&](float weight, int from) {
          const float* const values = crop + from * side;
          for (int x = 0; x < side; ++x) row[x] += weight * values[x];
        });
        for (int x = 0; x < axis.size(); ++x) {
          float sum = 0.0f;
          axis.visit(x, [&](float weight, int from) { sum += weight * row[from]; });
          out[x] = from_float<T>(sum);
        }
      }
    }
  }
};

/// A buffer for each thread.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::size_t size)
      : size_(size), values_(size_ * static_cast<std::size_t>(loop_threads())) {}
  T* of_this_thread() { return values_.data() + size_ * static_cast<std::size_t>(loop_thread()); }

 private:
  std::size_t size_;
  std::vector<T> values_;
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

/// Writes samples as the network reads them.
template <class T>
class SampleWriter {
 public:
  SampleWriter(const data::AugmentSpec& spec, const engine::DataView& data)
      : spec_(spec),
        data_(data),
        write_(choose_write<T>(spec.source.channels)),
        crops_(spec.leaves_image() ? static_cast<std::size_t>(spec.crop().count()) : 0),
        write_whole_(choose_write<float>(spec.source.channels)),
        axis_(spec.crop_height, spec.image_size),
        downsample_(best_version<Downsample<T>>()),
        whole_(spec.downsamples() ? static_cast<std::size_t>(spec.crop().count() + spec.crop_width) : 0) {}

  void operator()(const data::AugmentDraw& draw, std::uint64_t sample, T* out) {
    const Crop crop = crop_of(draw, sample);
    if (!spec_.downsamples()) return write_(spec_, draw, crop, out);
    float* const whole = whole_.of_this_thread();
    write_whole_(spec_, draw, crop, whole);
    downsample_(axis_, crop.width, crop.channels, whole, whole + spec_.crop().count(), out);
  }

 private:
  Crop crop_of(const data::AugmentDraw& draw, std::uint64_t sample) {
    const std::ptrdiff_t row_bytes = static_cast<std::ptrdiff_t>(spec_.source.width) * spec_.source.channels;
    const std::uint8_t* image = data_.images + sample * static_cast<std::uint64_t>(spec_.source.count());
    const Extent out = spec_.crop();
    const bool inside = draw.top >= 0 && draw.left >= 0 && draw.top + out.height <= spec_.source.height &&
                        draw.left + out.width <= spec_.source.width;
    if (inside) {
      return {image + draw.top * row_bytes + draw.left * out.channels, row_bytes, out.height, out.width,
              out.channels};
    }
    std::uint8_t* const own = crops_.of_this_thread();
    assemble(spec_, draw, image, own);
    return {own, std::ptrdiff_t{out.width} * out.channels, out.height, out.width, out.channels};
  }

  data::AugmentSpec spec_;
  engine::DataView data_;
  decltype(choose_write<T>(0)) write_;
  Scratch<std::uint8_t> crops_;  ///< crops that leave their image

  // Only with a size of its own:
  decltype(choose_write<float>(0)) write_whole_;
  Axis axis_;
  decltype(best_version<Downsample<T>>()) downsample_;
  Scratch<float> whole_;  ///< the normalized crop, and a row
};

template <class T>
engine::Task plan_train(const engine::TrainBinding& binding, int batch, T* x, std::uint8_t* labels) {
  engine::Task task = engine::declare_train_input(binding, batch, sizeof(T), x, labels);
  task.start = [batch, x, labels, first = binding.first_sample, data = binding.data, order = binding.order,
                spec = binding.augment, seed = binding.seed, step = binding.step,
                write = SampleWriter<T>(binding.augment, binding.data)](engine::Lane&) mutable {
    const std::uint64_t now = *step;
    const std::ptrdiff_t values = spec.output().count();
    parallel_for(batch, [&](std::ptrdiff_t i) {
      const data::SampleRef sample = order.at(now, first + static_cast<std::uint64_t>(i));
      write(draw_augment(spec, seed, sample.epoch, sample.id), sample.local, x + i * values);
      labels[i] = data.labels[sample.local];
    });
  };
  return task;
}

template <class T>
engine::Task plan_evaluate(const engine::EvaluateBinding& binding, int batch, T* x, std::uint8_t* labels) {
  engine::Task task = engine::declare_evaluate_input(binding, batch, sizeof(T), x, labels);
  task.start = [batch, x, labels, data = binding.data, spec = binding.augment, cursor = binding.cursor,
                write = SampleWriter<T>(binding.augment, binding.data)](engine::Lane&) mutable {
    const std::uint64_t begin = *cursor;
    const std::ptrdiff_t values = spec.output().count();
    parallel_for(batch, [&](std::ptrdiff_t i) {
      const std::uint64_t sample = begin + static_cast<std::uint64_t>(i);
      T* to = x + i * values;
      if (sample < data.count) {
        write(draw_augment(spec, 0, 0, sample), sample, to);
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
