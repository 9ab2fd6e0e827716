#include "cpu/fft/conv_fft.hpp"

#include <algorithm>
#include <exception>

#include "cpu/parallel.hpp"
#include "cpu/vectors.hpp"

namespace cifar_mpi::cpu::fft {
namespace {

using engine::Bytes;
using engine::bytes_of;
using engine::Lane;
using engine::Task;

const std::byte* as_bytes(const float* values) { return reinterpret_cast<const std::byte*>(values); }
std::byte* as_bytes(float* values) { return reinterpret_cast<std::byte*>(values); }

/// Spectra of the taps of one pair of channels; lanes are output channels, or input channels of transposed
/// weights. `rotated`: by half a turn, from the last tap on.
TransformPlace place_of_taps(const ConvFft& conv, const SpectraShape& spectra, bool rotated = false) {
  const std::ptrdiff_t pairs = std::ptrdiff_t{conv.src.extent.channels} * conv.dst.extent.channels;
  const int before = padding_before(conv.kernel), first = before == 0 ? 0 : conv.length - before;
  TransformPlace place;
  place.at = {conv.kernel, conv.kernel, first, first};
  place.column_step = rotated ? -pairs : pairs;
  place.row_step = conv.kernel * place.column_step;
  place.slot_step = spectra.slot_step();
  place.im_step = spectra.lanes;
  place.spectrum_next = spectra.row_step();
  return place;
}

/// The operands of the products of slots `first` to `last`.
struct SlotProducts {
  Product product = nullptr;
  Product real = nullptr;  ///< for slots of real values, whose imaginary parts nothing reads
  ProductShape shape;
  int first = 0;
  int last = 0;
  const float* a = nullptr;
  std::ptrdiff_t a_step = 0;  ///< from slot to slot
  const float* b = nullptr;
  std::ptrdiff_t b_step = 0;
  float* c = nullptr;
  std::ptrdiff_t c_step = 0;
};

/// Threads share the row tiles of all slots' products, so that a few slots suffice for many threads.
void multiply_slots(const ConvFft& conv, const SlotProducts& p) {
  const ProductShape& shape = p.shape;
  const int tile = conv.product_rows(), tiles = conv.product_tiles(shape.rows);
  const auto multiply_range = [&](Range range) {
    for (std::ptrdiff_t i = range.begin; i < range.end;) {
      const int slot = p.first + static_cast<int>(i / tiles);
      const std::ptrdiff_t first = i % tiles;
      const std::ptrdiff_t count = std::min(tiles - first, range.end - i);
      ProductShape part = shape;
      part.first = static_cast<int>(first * tile);
      part.rows = static_cast<int>(std::min(count * tile, std::ptrdiff_t{shape.rows} - part.first));
      if (first + count < tiles) part.a.next = part.b.next = 0;  // the next slot belongs to another thread
      (conv.is_real(slot) ? p.real : p.product)(part, p.a + slot * p.a_step, p.b + slot * p.b_step,
                                                p.c + slot * p.c_step);
      i += count;
    }
  };
  parallel_ranges(std::ptrdiff_t{p.last - p.first} * tiles, multiply_range, tiles);
}

/// C, whose rows are tiles of images or channels.
ProductSide result_side(const SpectraShape& c) { return {c.row_step(), 0, 0, c.panel_step(), 0}; }

/// Products of a piece's spectra [slots, samples, …] with those of weights; the pieces of k are the panels of A.
void multiply(const ConvFft& conv, Product product, const SpectraShape& a, const float* from,
              const SpectraShape& b, const float* weights, const SpectraShape& c, float* to) {
  const int lanes = a.lanes;
  const ProductShape shape{0,
                           a.rows,
                           c.channels,
                           lanes,
                           a.channels - (a.panels() - 1) * lanes,
                           a.panels(),
                           lanes,
                           {a.row_step(), 1, a.panel_step(), lanes * a.row_step(), a.slot_step()},
                           {0, b.row_step(), lanes * b.row_step(), b.panel_step(), b.slot_step()},
                           result_side(c)};
  multiply_slots(conv, {product, conv.real, shape, 0, a.slots, from, a.slot_step(), weights, b.slot_step(),
                        to, c.slot_step()});
}

/// Operations of a pass over the batch; all three passes need the same number of multiplications.
double products_flops(const ConvFft& conv) {
  const double pairs = static_cast<double>(conv.src.extent.channels) * conv.dst.extent.channels;
  const int real = conv.winograd ? conv.slots() : kRealSlots, complex = conv.slots() - real;
  return (kRealFlops * real + kComplexFlops * complex) * conv.batch * conv.tiles() * pairs;
}
TransformFlops taps_flops(const ConvFft& conv) {
  const double pairs = static_cast<double>(conv.src.extent.channels) * conv.dst.extent.channels;
  const Placement at = place_of_taps(conv, conv.weight_spectra()).at;
  const TransformFlops one =
      conv.winograd ? winograd_flops(WinogradPart::taps, at) : transform_flops(conv.length, at);
  return {pairs * one.forward, pairs * one.inverse};
}
/// From the first tap of a pair of channels to the one that place_of_taps begins with.
std::ptrdiff_t first_tap(const ConvFft& conv, bool rotated) {
  const std::ptrdiff_t taps = std::ptrdiff_t{conv.kernel} * conv.kernel;
  return rotated ? (taps - 1) * conv.src.extent.channels * conv.dst.extent.channels : 0;
}
Bytes images_of(const ConvFft& conv, const ImageShape& shape, const std::byte* images) {
  return {images, static_cast<std::size_t>(conv.batch) * shape.image_bytes()};
}

/// Of all threads.
Bytes vectors_of(const ConvFft& conv, const ConvFftMemory& memory) {
  return {memory.vectors, static_cast<std::size_t>(loop_threads()) * conv.vector_bytes()};
}
Bytes choices_of(const ConvFft& conv, const ConvFftMemory& memory) {
  return bytes_of(memory.choices, conv.choices());
}

Bytes spectra_of(const SpectraShape& shape, const float* spectra, int pieces) {
  return bytes_of(spectra, shape.floats() * static_cast<std::size_t>(pieces));
}

/// Whether spectra that a later task reads should be stored past the caches.
bool outgrows_caches(const ConvFft& conv, const SpectraShape& shape, int pieces) {
  return spectra_of(shape, nullptr, pieces).size >= conv.least_past_caches;
}

float* part_of(const SpectraShape& shape, float* spectra, int part) {
  return spectra + shape.floats() * static_cast<std::size_t>(part);
}

/// Calls body(piece, scratch) for each piece of the batch; `scratch` is below conv.concurrent. An error of the lane is
/// thrown after the loop, whose bodies must not throw.
template <class Body>
void for_each_piece(const ConvFft& conv, Lane& lane, const Body& body) {
  std::exception_ptr error;  // of the calling thread
  const auto run = [&](std::ptrdiff_t piece) {
    const int thread = loop_thread();
    body(static_cast<int>(piece), thread);
    if (thread != 0 || error) return;
    try {
      lane.make_progress();
    } catch (...) {
      error = std::current_exception();
    }
  };
  if (conv.concurrent > 1) {
    parallel_for(conv.pieces(), run);
  } else {
    for (int piece = 0; piece < conv.pieces() && !error; ++piece) run(piece);
  }
  if (error) std::rethrow_exception(error);
}

/// ĝw of the slots [first, last), of so many pieces of both spectra.
void multiply_gradients(const ConvFft& conv, const float* src_spectra, const ConvFftMemory& memory,
                        int pieces, int first, int last) {
  const SpectraShape x = conv.src_spectra(), g = conv.dst_spectra(), w = conv.gradient_spectra();
  const ProductShape shape{
      0,
      x.channels,
      g.channels,
      x.rows,
      x.rows,
      pieces,
      x.lanes,
      {1, x.row_step(), static_cast<std::ptrdiff_t>(x.floats()), x.panel_step(), x.slot_step()},
      {0, g.row_step(), static_cast<std::ptrdiff_t>(g.floats()), g.panel_step(), g.slot_step()},
      result_side(w)};
  multiply_slots(
      conv, {conv.recomputes ? conv.sum : conv.correlate, conv.recomputes ? conv.real_sum : conv.real, shape,
             first, last, src_spectra, x.slot_step(), memory.grad_dst_spectra, g.slot_step(),
             memory.grad_weights_spectra, w.slot_step()});
}

/// Number of parts of the weight gradient's products; outstanding collectives make progress after each. Each
/// part has some tiles for each thread.
int gradient_parts(const ConvFft& conv, int threads) {
  constexpr int kMostParts = 8, kTilesPerThread = 8;
  const int tiles = conv.slots() * conv.product_tiles(conv.src.extent.channels);
  return std::clamp(tiles / (kTilesPerThread * threads), 1, kMostParts);
}

void transform_back_taps(const ConvFft& conv, const float* spectra, float* taps) {
  const SpectraShape shape = conv.gradient_spectra();
  const bool rotated = conv.gradient_reaches();
  const TransformPlace place = place_of_taps(conv, shape, rotated);
  const int panels = shape.panels();
  taps += first_tap(conv, rotated);
  parallel_for(std::ptrdiff_t{shape.rows} * panels, [&](std::ptrdiff_t i) {
    const std::ptrdiff_t row = i / panels, c = i % panels * conv.lanes();
    conv.taps.inverse(place, spectra + shape.at(row, c), {conv.scale()},
                      as_bytes(taps + row * shape.channels + c));
  });
}

void sum_biases(const ConvFft& conv, const float* spectra, float* grad_biases) {
  const SpectraShape shape = conv.dst_spectra();
  const int lanes = conv.lanes();
  parallel_for(shape.channels / lanes, [&](std::ptrdiff_t vector) {
    const std::ptrdiff_t first = vector * lanes;
    std::fill_n(grad_biases + first, lanes, 0.0f);
    for (int row = 0; row < conv.batch * conv.tiles(); ++row) {
      const float* const zero_frequency = spectra +
                                          row / shape.rows * static_cast<std::ptrdiff_t>(shape.floats()) +
                                          shape.at(row % shape.rows, first);
      for (std::ptrdiff_t c = 0; c < lanes; ++c) grad_biases[first + c] += zero_frequency[c];
    }
  });
}

void data_gradient_of_piece(const ConvFft& conv, const ConvFftMemory& memory, int piece, int scratch) {
  const SpectraShape x = conv.src_spectra(), y = conv.dst_spectra();
  float* const spectra = part_of(y, memory.grad_dst_spectra, memory.keeps_grad_dst_spectra ? piece : scratch);
  const int first = piece * conv.samples;
  const bool past_caches = memory.keeps_grad_dst_spectra && outgrows_caches(conv, y, conv.pieces());
  if (conv.pool != nullptr) {
    transform_pooled(conv, memory, first, past_caches, y, spectra);
  } else {
    transform(conv, {conv.dst, first, conv.gradient_reaches(), past_caches}, memory.grad_dst, y, spectra);
  }
  if (memory.grad_src == nullptr) return;
  float* const product = part_of(x, memory.product, scratch);
  multiply(conv, conv.convolve, y, spectra, conv.transposed_spectra(), memory.transposed_weights, x, product);
  transform_back(conv, {conv.src, first, !conv.gradient_reaches()}, x, product, nullptr, false,
                 memory.grad_src);
}

}  // namespace

ConvFft with_kernels(ConvFft conv, engine::Precision precision) {
  const Tiling tiling = conv.winograd ? Tiling{kWinogradLength, kWinogradLength - conv.kernel + 1}
                                      : tiling_for(conv.src.extent, conv.kernel, precision);
  conv.length = tiling.length;
  conv.tile = tiling.tile;
  conv.tiles_reaching = tiles_of(conv, true);
  conv.tiles_inside = tiles_of(conv, false);
  conv.real = product_for(conv.set, ProductKind::real);
  conv.real_sum = product_for(conv.set, ProductKind::real_sum);
  if (conv.winograd) {
    conv.reaching = winograd_transforms(WinogradPart::reach, conv.set, precision);
    conv.inside = winograd_transforms(WinogradPart::tile, conv.set, precision);
    conv.taps = winograd_transforms(WinogradPart::taps, conv.set, engine::Precision::fp32);
    return conv;
  }
  conv.reaching = conv.inside = transforms_for(conv.length, conv.set, precision);
  conv.taps = transforms_for(conv.length, conv.set, engine::Precision::fp32);
  conv.correlate = product_for(conv.set, ProductKind::correlate);
  conv.convolve = product_for(conv.set, ProductKind::convolve);
  conv.sum = product_for(conv.set, ProductKind::sum);
  return conv;
}

Task plan_fft_weights(const std::string& name, const ConvFft& conv, const float* weights,
                      const ConvFftMemory& memory) {
  // Ordered by row within a vector of channels, because transposed weights that are neighbours in memory are
  // read next.
  const bool past_caches = outgrows_caches(conv, conv.weight_spectra(), 1);
  const auto transform_taps = [conv, weights, past_caches](const SpectraShape& shape, std::ptrdiff_t row_step,
                                                           std::ptrdiff_t lane_step, bool rotated, float* to,
                                                           std::ptrdiff_t item) {
    TransformPlace place = place_of_taps(conv, shape, rotated);
    place.lane_step = lane_step;
    place.past_caches = past_caches;
    const std::ptrdiff_t row = item % shape.rows, c = item / shape.rows * conv.lanes();
    place.lanes = static_cast<int>(std::min<std::ptrdiff_t>(conv.lanes(), shape.channels - c));
    conv.taps.forward(place, as_bytes(weights + first_tap(conv, rotated) + row * row_step + c * lane_step),
                      to + shape.at(row, c));
  };
  Task task{name, {bytes_of(weights, conv.weight_floats())}, {}, {}, {}};
  task.writes.push_back(spectra_of(conv.weight_spectra(), memory.weights, 1));
  task.cost.flops = taps_flops(conv).forward * (memory.transposed_weights != nullptr ? 2.0 : 1.0);
  if (memory.transposed_weights != nullptr)
    task.writes.push_back(spectra_of(conv.transposed_spectra(), memory.transposed_weights, 1));
  task.start = [conv, memory, past_caches, transform_taps](Lane&) {
    const SpectraShape plain = conv.weight_spectra(), transposed = conv.transposed_spectra();
    const std::ptrdiff_t outputs = conv.dst.extent.channels;
    const std::ptrdiff_t of_plain = std::ptrdiff_t{plain.rows} * plain.panels();
    const std::ptrdiff_t of_transposed =
        memory.transposed_weights == nullptr ? 0 : std::ptrdiff_t{transposed.rows} * transposed.panels();
    parallel_ranges(of_plain + of_transposed, [&](Range range) {
      for (std::ptrdiff_t i = range.begin; i < range.end; ++i) {
        if (i < of_plain) {
          transform_taps(plain, outputs, 1, false, memory.weights, i);
        } else {
          transform_taps(transposed, 1, outputs, conv.gradient_reaches(), memory.transposed_weights,
                         i - of_plain);
        }
      }
      if (past_caches) finish_stores();
    });
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
  task.writes = {
      images_of(conv, conv.stored_dst(), memory.dst),
      spectra_of(x, memory.src_spectra, memory.keeps_src_spectra ? conv.pieces() : conv.concurrent),
      spectra_of(y, memory.product, conv.concurrent)};
  if (conv.pool != nullptr) {
    task.writes.push_back(vectors_of(conv, memory));
    if (memory.choices != nullptr) task.writes.push_back(choices_of(conv, memory));
  }
  task.cost.flops = images_flops(conv, conv.src, true).forward + products_flops(conv) +
                    images_flops(conv, conv.dst, false).inverse;
  const bool past_caches = memory.keeps_src_spectra && outgrows_caches(conv, x, conv.pieces());
  task.start = [=](Lane& lane) {
    for_each_piece(conv, lane, [&](int piece, int scratch) {
      float* const spectra = part_of(x, memory.src_spectra, memory.keeps_src_spectra ? piece : scratch);
      float* const product = part_of(y, memory.product, scratch);
      const int first = piece * conv.samples;
      transform(conv, {conv.src, first, true, past_caches}, memory.src, x, spectra);
      multiply(conv, conv.correlate, x, spectra, w, memory.weights, y, product);
      if (conv.pool != nullptr) {
        transform_back_pooled(conv, memory, first, y, product, biases);
      } else {
        transform_back(conv, {conv.dst, first, false}, y, product, biases, conv.relu, memory.dst);
      }
    });
  };
  return task;
}

Task plan_fft_data_gradient(const std::string& name, const ConvFft& conv, const ConvFftMemory& memory) {
  const SpectraShape x = conv.src_spectra(), y = conv.dst_spectra(), w = conv.transposed_spectra();
  const bool computes_grad_src = memory.grad_src != nullptr;
  Task task;
  task.name = name;
  task.reads = {images_of(conv, conv.stored_dst(), memory.grad_dst)};
  task.writes = {spectra_of(y, memory.grad_dst_spectra,
                            memory.keeps_grad_dst_spectra ? conv.pieces() : conv.concurrent)};
  if (conv.pool != nullptr) {
    task.reads.push_back(choices_of(conv, memory));
    task.writes.push_back(vectors_of(conv, memory));
  }
  task.cost.flops = images_flops(conv, conv.dst, conv.gradient_reaches()).forward;
  if (computes_grad_src) {
    task.reads.push_back(spectra_of(w, memory.transposed_weights, 1));
    task.writes.push_back(images_of(conv, conv.src, memory.grad_src));
    task.writes.push_back(spectra_of(x, memory.product, conv.concurrent));
    task.cost.flops += products_flops(conv) + images_flops(conv, conv.src, !conv.gradient_reaches()).inverse;
  }
  task.start = [=](Lane& lane) {
    for_each_piece(conv, lane,
                   [&](int piece, int scratch) { data_gradient_of_piece(conv, memory, piece, scratch); });
  };
  return task;
}

Task plan_fft_gradients(const std::string& name, const ConvFft& conv, const ConvFftMemory& memory,
                        float* grad_weights) {
  const SpectraShape x = conv.src_spectra(), w = conv.gradient_spectra();
  Task task = plan_fft_data_gradient(name, conv, memory);
  task.reads.push_back(images_of(conv, conv.src, memory.src));
  task.writes.push_back(spectra_of(x, memory.product, 1));
  task.writes.push_back(spectra_of(w, memory.grad_weights_spectra, 1));
  task.writes.push_back(bytes_of(grad_weights, conv.weight_floats()));
  task.cost.flops += images_flops(conv, conv.src, !conv.gradient_reaches()).forward + products_flops(conv) +
                     taps_flops(conv).inverse;
  task.start = [=](Lane& lane) {
    std::fill_n(memory.grad_weights_spectra, w.floats(), 0.0f);
    for_each_piece(conv, lane, [&](int piece, int scratch) {
      data_gradient_of_piece(conv, memory, piece, scratch);
      transform(conv, {conv.src, piece * conv.samples, !conv.gradient_reaches()}, memory.src, x,
                memory.product);
      multiply_gradients(conv, memory.product, memory, 1, 0, w.slots);
    });
    for (int slot = 0; slot < w.slots && !conv.winograd; ++slot)
      combine_sums(w.rows * w.panels(), w.lanes, memory.grad_weights_spectra + slot * w.slot_step());
    transform_back_taps(conv, memory.grad_weights_spectra, grad_weights);
  };
  return task;
}

Task plan_fft_weight_gradient(const std::string& name, const ConvFft& conv, const ConvFftMemory& memory,
                              float* grad_weights, float* grad_biases) {
  const SpectraShape shape = conv.gradient_spectra(), x = conv.src_spectra();
  Task task;
  task.name = name;
  task.reads = {spectra_of(conv.dst_spectra(), memory.grad_dst_spectra, conv.pieces())};
  const Bytes src_spectra = spectra_of(x, memory.src_spectra, conv.pieces());
  if (memory.keeps_src_spectra) task.reads.push_back(src_spectra);
  task.writes = {spectra_of(shape, memory.grad_weights_spectra, 1),
                 bytes_of(grad_weights, conv.weight_floats())};
  if (grad_biases != nullptr)
    task.writes.push_back(bytes_of(grad_biases, static_cast<std::size_t>(shape.channels)));
  task.cost.flops = products_flops(conv) + taps_flops(conv).inverse;
  if (!memory.keeps_src_spectra) {
    task.reads.push_back(images_of(conv, conv.src, memory.src));
    task.writes.push_back(src_spectra);
    task.cost.flops += images_flops(conv, conv.src, !conv.gradient_reaches()).forward;
  }
  task.start = [=](Lane& lane) {
    if (!memory.keeps_src_spectra) {
      for_each_piece(conv, lane, [&](int piece, int) {
        transform(conv, {conv.src, piece * conv.samples, !conv.gradient_reaches()}, memory.src, x,
                  part_of(x, memory.src_spectra, piece));
      });
    }
    const int parts = gradient_parts(conv, loop_threads());
    for (int part = 0; part < parts; ++part) {
      multiply_gradients(conv, memory.src_spectra, memory, conv.pieces(), shape.slots * part / parts,
                         shape.slots * (part + 1) / parts);
      lane.make_progress();
    }
    transform_back_taps(conv, memory.grad_weights_spectra, grad_weights);
    if (grad_biases != nullptr) sum_biases(conv, memory.grad_dst_spectra, grad_biases);
  };
  return task;
}

}  // namespace cifar_mpi::cpu::fft
