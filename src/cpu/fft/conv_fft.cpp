#include "cpu/fft/conv_fft.hpp"

#include <algorithm>
#include <limits>

namespace cifar_mpi::cpu::fft {
namespace {

using engine::Bytes;
using engine::bytes_of;
using engine::Lane;
using engine::Task;

const std::byte* as_bytes(const float* values) { return reinterpret_cast<const std::byte*>(values); }
std::byte* as_bytes(float* values) { return reinterpret_cast<std::byte*>(values); }

/// Of the padding for `kernel`, in front and behind.
int before_of(int kernel) { return (kernel - 1) / 2; }
int after_of(int kernel) { return kernel - 1 - before_of(kernel); }

/// What a tile has of one side of an image.
struct Places {
  int begin = 0;
  int count = 0;
  int first = 0;  ///< on the circle
};

/// `number` counts tiles along the side; `reaches`: with what the kernel reaches from the tile.
Places places_of(const ConvFft& conv, int side, int number, bool reaches) {
  const int tile = number * conv.tile, end = std::min(tile + conv.tile, side);
  if (!reaches) return {tile, end - tile, 0};
  const int begin = std::max(0, tile - before_of(conv.kernel));
  return {begin, std::min(end + after_of(conv.kernel), side) - begin,
          begin == tile ? 0 : conv.length - (tile - begin)};
}

struct Tile {
  Placement at;
  std::ptrdiff_t first_pixel = 0;
};

Tile tile_of(const ConvFft& conv, int number, bool reaches) {
  const Extent& image = conv.src.extent;
  const Places rows = places_of(conv, image.height, number / conv.tiles_across(), reaches);
  const Places columns = places_of(conv, image.width, number % conv.tiles_across(), reaches);
  return {{rows.count, columns.count, rows.first, columns.first},
          std::ptrdiff_t{rows.begin} * image.width + columns.begin};
}

TransformPlace place_of(const ImageShape& shape, const SpectraShape& spectra) {
  TransformPlace place;
  place.row_step = std::ptrdiff_t{shape.extent.width} * shape.block;
  place.column_step = shape.block;
  place.slot_step = spectra.slot_step();
  place.im_step = spectra.channels;
  place.image_next = std::ptrdiff_t{shape.extent.height} * shape.extent.width * shape.block;
  place.spectrum_next = spectra.row_step();
  return place;
}

/// Of the taps of one pair of channels; lanes are output channels, or input channels of transposed weights.
TransformPlace place_of_taps(const ConvFft& conv, const SpectraShape& spectra) {
  const std::ptrdiff_t pairs = std::ptrdiff_t{conv.src.extent.channels} * conv.dst.extent.channels;
  const int before = before_of(conv.kernel), first = before == 0 ? 0 : conv.length - before;
  TransformPlace place;
  place.at = {conv.kernel, conv.kernel, first, first};
  place.row_step = conv.kernel * pairs;
  place.column_step = pairs;
  place.slot_step = spectra.slot_step();
  place.im_step = spectra.channels;
  place.spectrum_next = spectra.row_step();
  return place;
}

/// body(row, place, at) for each tile of image n of a piece: its row in the spectra, where it lies on its square and in memory,
/// and how many bytes of the image lie before it.
template <class Body>
void for_each_tile(const ConvFft& conv, const ImageShape& shape, const SpectraShape& spectra, bool reaches,
                   int n, const Body& body) {
  TransformPlace place = place_of(shape, spectra);
  for (int t = 0; t < conv.tiles(); ++t) {
    const Tile tile = tile_of(conv, t, reaches);
    place.at = tile.at;
    body(n * conv.tiles() + t, place,
         static_cast<std::size_t>(tile.first_pixel * shape.block) * shape.value_bytes);
  }
}

/// The images of a piece, of which the first is `first`; `reaches`: with what a tile's outputs read beyond its edges.
void transform(const ConvFft& conv, const ImageShape& shape, const std::byte* images, int first, bool reaches,
               const SpectraShape& spectra, float* to) {
#pragma omp parallel for collapse(2) schedule(static)
  for (int n = 0; n < conv.samples; ++n) {
    for (int c = 0; c < spectra.channels; c += conv.lanes()) {
      const std::byte* const image = images + shape.offset(first + n, c);
      for_each_tile(conv, shape, spectra, reaches, n,
                    [&](int row, const TransformPlace& place, std::size_t at) {
                      conv.images.there(place, image + at, to + row * spectra.row_step() + c);
                    });
    }
  }
}

/// Of a vector of channels of an image.
void clear(const ConvFft& conv, const ImageShape& shape, std::byte* image) {
  const std::size_t step = static_cast<std::size_t>(shape.block) * shape.value_bytes;
  const int pixels = shape.extent.height * shape.extent.width;
  for (int pixel = 0; pixel < pixels; ++pixel)
    std::fill_n(image + pixel * step, conv.lanes() * shape.value_bytes, std::byte{});
}

/// `reaches`: tiles reach beyond their edges, and are added up.
void transform_back(const ConvFft& conv, const ImageShape& shape, const SpectraShape& spectra,
                    const float* from, bool reaches, const float* biases, bool relu, std::byte* images,
                    int first) {
  const bool adds = reaches && conv.tiles() > 1;
#pragma omp parallel for collapse(2) schedule(static)
  for (int n = 0; n < conv.samples; ++n) {
    for (int c = 0; c < spectra.channels; c += conv.lanes()) {
      std::byte* const image = images + shape.offset(first + n, c);
      if (adds) clear(conv, shape, image);
      for_each_tile(conv, shape, spectra, reaches, n,
                    [&](int row, const TransformPlace& place, std::size_t at) {
                      conv.images.back(place, from + row * spectra.row_step() + c,
                                       {conv.scale(), biases == nullptr ? nullptr : biases + c, adds, relu},
                                       image + at);
                    });
    }
  }
}

/// Products of a piece's spectra [slots, samples, …] with those of weights.
void multiply(Product product, const SpectraShape& a, const float* from, const SpectraShape& b,
              const float* weights, const SpectraShape& c, float* to) {
  const ProductShape shape{a.rows,
                           c.channels,
                           a.channels,
                           1,
                           {a.row_step(), 1, 0, a.channels},
                           {0, b.row_step(), 0, b.channels, b.slot_step()},
                           {c.row_step(), 0, 0, c.channels}};
#pragma omp parallel for schedule(static)
  for (int slot = 0; slot < a.slots; ++slot) {
    product(shape, from + slot * a.slot_step(), weights + slot * b.slot_step(), to + slot * c.slot_step());
  }
}

/// Of a pass over the batch; all three multiply as often.
double products_flops(const ConvFft& conv) {
  const ProductShape shape{
      conv.batch * conv.tiles(), conv.dst.extent.channels, conv.src.extent.channels, 1, {}, {}, {}};
  return conv.slots() * product_flops(shape);
}
TransformFlops taps_flops(const ConvFft& conv) {
  const double pairs = static_cast<double>(conv.src.extent.channels) * conv.dst.extent.channels;
  const TransformFlops one = transform_flops(conv.length, place_of_taps(conv, conv.weight_spectra()).at);
  return {pairs * one.there, pairs * one.back};
}
TransformFlops images_flops(const ConvFft& conv, const ImageShape& shape, bool reaches) {
  const double images = static_cast<double>(conv.batch) * shape.extent.channels;
  TransformFlops sum;
  for (int t = 0; t < conv.tiles(); ++t) {
    const TransformFlops one = transform_flops(conv.length, tile_of(conv, t, reaches).at);
    sum.there += images * one.there;
    sum.back += images * one.back;
  }
  return sum;
}

Bytes images_of(const ConvFft& conv, const ImageShape& shape, const std::byte* images) {
  return {images, static_cast<std::size_t>(conv.batch) * shape.image_bytes()};
}

Bytes spectra_of(const SpectraShape& shape, const float* spectra, int pieces) {
  return bytes_of(spectra, shape.floats() * static_cast<std::size_t>(pieces));
}

float* piece_of(const SpectraShape& shape, float* spectra, bool kept, int piece) {
  return kept ? spectra + shape.floats() * static_cast<std::size_t>(piece) : spectra;
}

/// ĝw of the slots [first, last).
void multiply_gradients(const ConvFft& conv, const ConvFftMemory& memory, int first, int last) {
  const SpectraShape x = conv.src_spectra(), g = conv.dst_spectra(), w = conv.weight_spectra();
  const ProductShape shape{
      x.channels,
      g.channels,
      x.rows,
      conv.pieces(),
      {1, x.row_step(), static_cast<std::ptrdiff_t>(x.floats()), x.channels, x.slot_step()},
      {0, g.row_step(), static_cast<std::ptrdiff_t>(g.floats()), g.channels, g.slot_step()},
      {w.row_step(), 0, 0, w.channels}};
#pragma omp parallel for schedule(static)
  for (int slot = first; slot < last; ++slot) {
    conv.correlate(shape, memory.src_spectra + slot * x.slot_step(),
                   memory.grad_dst_spectra + slot * g.slot_step(),
                   memory.grad_weights_spectra + slot * w.slot_step());
  }
}

void transform_back_taps(const ConvFft& conv, const float* spectra, float* taps) {
  const SpectraShape shape = conv.weight_spectra();
  const TransformPlace place = place_of_taps(conv, shape);
#pragma omp parallel for collapse(2) schedule(static)
  for (int row = 0; row < shape.rows; ++row) {
    for (int c = 0; c < shape.channels; c += conv.lanes()) {
      conv.taps.back(place, spectra + row * shape.row_step() + c, {conv.scale()},
                     as_bytes(taps + std::ptrdiff_t{row} * shape.channels + c));
    }
  }
}

void sum_biases(const ConvFft& conv, const float* spectra, float* grad_biases) {
  const SpectraShape shape = conv.dst_spectra();
  std::fill_n(grad_biases, shape.channels, 0.0f);
  for (int row = 0; row < conv.batch * conv.tiles(); ++row) {
    const float* const zero_frequency = spectra +
                                        row / shape.rows * static_cast<std::ptrdiff_t>(shape.floats()) +
                                        row % shape.rows * shape.row_step();
    for (int c = 0; c < shape.channels; ++c) grad_biases[c] += zero_frequency[c];
  }
}

}  // namespace

std::size_t ImageShape::offset(int image, int channel) const {
  const std::ptrdiff_t pixels = std::ptrdiff_t{extent.height} * extent.width;
  const std::ptrdiff_t values =
      image * pixels * extent.channels + channel / block * pixels * block + channel % block;
  return static_cast<std::size_t>(values) * value_bytes;
}

Tiling tiling_for(const Extent& image, int kernel, engine::Precision precision) {
  const int side = std::max(image.height, image.width);
  const int whole = side + std::max(before_of(kernel), after_of(kernel));
  Tiling best;
  int least = std::numeric_limits<int>::max();
  for (const int length : kLengths) {
    const bool cut = length < whole;
    if (length < kernel || (cut && precision != engine::Precision::fp32)) continue;
    const int tile = cut ? length - kernel + 1 : side;
    const int places = (image.height + tile - 1) / tile * ((image.width + tile - 1) / tile) * length * length;
    if (places >= least) continue;
    least = places;
    best = {length, tile};
  }
  return best;
}

ConvFft with_kernels(ConvFft conv, engine::Precision precision) {
  const Tiling tiling = tiling_for(conv.src.extent, conv.kernel, precision);
  conv.length = tiling.length;
  conv.tile = tiling.tile;
  conv.images = transforms_for(conv.length, conv.set, precision);
  conv.taps = transforms_for(conv.length, conv.set, engine::Precision::fp32);
  conv.correlate = product_for(conv.set, true);
  conv.convolve = product_for(conv.set, false);
  return conv;
}

Task plan_fft_weights(const std::string& name, const ConvFft& conv, const float* weights,
                      const ConvFftMemory& memory) {
  const auto transform_taps = [conv, weights](const SpectraShape& shape, std::ptrdiff_t row_step,
                                              std::ptrdiff_t lane_step, float* to) {
    TransformPlace place = place_of_taps(conv, shape);
    place.lane_step = lane_step;
    // By row within a vector of channels: of transposed weights neighbours in memory are next to be read.
#pragma omp parallel for collapse(2) schedule(static)
    for (int c = 0; c < shape.channels; c += conv.lanes()) {
      for (int row = 0; row < shape.rows; ++row) {
        conv.taps.there(place, as_bytes(weights + row * row_step + c * lane_step),
                        to + row * shape.row_step() + c);
      }
    }
  };
  Task task{name, {bytes_of(weights, conv.weight_floats())}, {}, {}, {}};
  task.writes.push_back(spectra_of(conv.weight_spectra(), memory.weights, 1));
  task.cost.flops = taps_flops(conv).there * (memory.turned_weights != nullptr ? 2.0 : 1.0);
  if (memory.turned_weights != nullptr)
    task.writes.push_back(spectra_of(conv.turned_spectra(), memory.turned_weights, 1));
  task.start = [conv, memory, transform_taps](Lane&) {
    const std::ptrdiff_t outputs = conv.dst.extent.channels;
    transform_taps(conv.weight_spectra(), outputs, 1, memory.weights);
    if (memory.turned_weights != nullptr)
      transform_taps(conv.turned_spectra(), 1, outputs, memory.turned_weights);
  };
  return task;
}

Task plan_fft_forward(const std::string& name, const ConvFft& conv, const ConvFftMemory& memory,
                      const float* biases) {
  const SpectraShape x = conv.src_spectra(), y = conv.dst_spectra(), w = conv.weight_spectra();
  Task task;
  task.name = name;
  task.reads = {images_of(conv, conv.src, memory.src), spectra_of(w, memory.weights, 1)};
  if (biases != nullptr) task.reads.push_back(bytes_of(biases, static_cast<std::size_t>(y.channels)));
  task.writes = {images_of(conv, conv.dst, memory.dst),
                 spectra_of(x, memory.src_spectra, memory.keeps_src_spectra ? conv.pieces() : 1),
                 spectra_of(y, memory.product, 1)};
  task.cost.flops = images_flops(conv, conv.src, true).there + products_flops(conv) +
                    images_flops(conv, conv.dst, false).back;
  task.start = [=](Lane& lane) {
    for (int p = 0; p < conv.pieces(); ++p) {
      float* const spectra = piece_of(x, memory.src_spectra, memory.keeps_src_spectra, p);
      transform(conv, conv.src, memory.src, p * conv.samples, true, x, spectra);
      multiply(conv.correlate, x, spectra, w, memory.weights, y, memory.product);
      transform_back(conv, conv.dst, y, memory.product, false, biases, conv.relu, memory.dst,
                     p * conv.samples);
      lane.make_progress();
    }
  };
  return task;
}

Task plan_fft_data_gradient(const std::string& name, const ConvFft& conv, const ConvFftMemory& memory) {
  const SpectraShape x = conv.src_spectra(), y = conv.dst_spectra(), w = conv.turned_spectra();
  const bool back = memory.grad_src != nullptr;
  Task task;
  task.name = name;
  task.reads = {images_of(conv, conv.dst, memory.grad_dst)};
  task.writes = {spectra_of(y, memory.grad_dst_spectra, memory.keeps_grad_dst_spectra ? conv.pieces() : 1)};
  task.cost.flops = images_flops(conv, conv.dst, false).there;
  if (back) {
    task.reads.push_back(spectra_of(w, memory.turned_weights, 1));
    task.writes.push_back(images_of(conv, conv.src, memory.grad_src));
    task.writes.push_back(spectra_of(x, memory.product, 1));
    task.cost.flops += products_flops(conv) + images_flops(conv, conv.src, true).back;
  }
  task.start = [=](Lane& lane) {
    for (int p = 0; p < conv.pieces(); ++p) {
      float* const spectra = piece_of(y, memory.grad_dst_spectra, memory.keeps_grad_dst_spectra, p);
      transform(conv, conv.dst, memory.grad_dst, p * conv.samples, false, y, spectra);
      if (back) {
        multiply(conv.convolve, y, spectra, w, memory.turned_weights, x, memory.product);
        transform_back(conv, conv.src, x, memory.product, true, nullptr, false, memory.grad_src,
                       p * conv.samples);
      }
      lane.make_progress();
    }
  };
  return task;
}

Task plan_fft_weight_gradient(const std::string& name, const ConvFft& conv, const ConvFftMemory& memory,
                              float* grad_weights, float* grad_biases) {
  const SpectraShape shape = conv.weight_spectra();
  Task task;
  task.name = name;
  task.reads = {spectra_of(conv.src_spectra(), memory.src_spectra, conv.pieces()),
                spectra_of(conv.dst_spectra(), memory.grad_dst_spectra, conv.pieces())};
  task.writes = {spectra_of(shape, memory.grad_weights_spectra, 1),
                 bytes_of(grad_weights, conv.weight_floats())};
  if (grad_biases != nullptr)
    task.writes.push_back(bytes_of(grad_biases, static_cast<std::size_t>(shape.channels)));
  task.cost.flops = products_flops(conv) + taps_flops(conv).back;
  task.start = [=](Lane& lane) {
    constexpr int kParts = 8;  // after each collectives that are out move on
    for (int part = 0; part < kParts; ++part) {
      multiply_gradients(conv, memory, shape.slots * part / kParts, shape.slots * (part + 1) / kParts);
      lane.make_progress();
    }
    transform_back_taps(conv, memory.grad_weights_spectra, grad_weights);
    if (grad_biases != nullptr) sum_biases(conv, memory.grad_dst_spectra, grad_biases);
  };
  return task;
}

}  // namespace cifar_mpi::cpu::fft
