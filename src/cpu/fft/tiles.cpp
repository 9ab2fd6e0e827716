#include <algorithm>
#include <limits>

#include "cpu/fft/conv_fft.hpp"
#include "cpu/parallel.hpp"
#include "cpu/vectors.hpp"

namespace cifar_mpi::cpu::fft {
namespace {

int padding_after(int kernel) { return kernel - 1 - padding_before(kernel); }

/// The extent of a tile along one side of an image.
struct Places {
  int begin = 0;
  int count = 0;
  int first = 0;  ///< on the circle
};

/// `number` counts tiles along the side; `reaches`: includes what the kernel reads beyond the tile.
Places places_of(const ConvFft& conv, int side, int number, bool reaches) {
  const int tile = number * conv.tile, end = std::min(tile + conv.tile, side);
  if (!reaches) return {tile, end - tile, 0};
  const int begin = std::max(0, tile - padding_before(conv.kernel));
  return {begin, std::min(end + padding_after(conv.kernel), side) - begin,
          begin == tile ? 0 : conv.length - (tile - begin)};
}

Tile tile_of(const ConvFft& conv, int number, bool reaches) {
  const Extent& image = conv.src.extent;
  const Places rows = places_of(conv, image.height, number / conv.tiles_across(), reaches);
  const Places columns = places_of(conv, image.width, number % conv.tiles_across(), reaches);
  return {{rows.count, columns.count, rows.first, columns.first},
          std::ptrdiff_t{rows.begin} * image.width + columns.begin,
          number >= conv.tiles_across(),
          number % conv.tiles_across() != 0};
}

TransformPlace place_of(const ImageShape& shape, const SpectraShape& spectra) {
  TransformPlace place;
  place.row_step = std::ptrdiff_t{shape.extent.width} * shape.block;
  place.column_step = shape.block;
  place.slot_step = spectra.slot_step();
  place.im_step = spectra.lanes;
  place.image_next = static_cast<std::ptrdiff_t>(shape.image_bytes() / shape.value_bytes);
  place.spectrum_next = spectra.row_step();
  return place;
}

/// Tiles of one vector of channels of an image of a piece.
struct TileRun {
  int image = 0;
  int channel = 0;
  Range tiles;
};

/// Shares the tiles of a piece among the threads and calls body(TileRun) for runs within one vector of
/// channels of an image. Images are the inner loop, because their rows are neighbours in a panel.
template <class Body>
void for_all_tiles(const ConvFft& conv, const SpectraShape& spectra, const Body& body) {
  const int tiles = conv.tiles(), vectors = spectra.panels();
  parallel_ranges(std::ptrdiff_t{conv.samples} * vectors * tiles, [&](Range range) {
    for (std::ptrdiff_t i = range.begin; i < range.end;) {
      const std::ptrdiff_t first = i % tiles, count = std::min(tiles - first, range.end - i);
      const int vector = static_cast<int>(i / tiles);
      body(TileRun{vector % conv.samples, vector / conv.samples * conv.lanes(), {first, first + count}});
      i += count;
    }
  });
}

/// Calls body(row, place, at, tile) for each tile of a run: its row in the spectra, its place on the square and
/// in memory, and the bytes of the image before it.
template <class Body>
void for_each_tile(const ConvFft& conv, const ImageShape& shape, const SpectraShape& spectra, bool reaches,
                   const TileRun& run, const Body& body) {
  TransformPlace place = place_of(shape, spectra);
  const std::vector<Tile>& tiles = reaches ? conv.tiles_reaching : conv.tiles_inside;
  const std::ptrdiff_t first_row = run.image * static_cast<std::ptrdiff_t>(tiles.size());
  for (std::ptrdiff_t t = run.tiles.begin; t < run.tiles.end; ++t) {
    const Tile& tile = tiles[static_cast<std::size_t>(t)];
    place.at = tile.at;
    body(first_row + t, place, static_cast<std::size_t>(tile.first_pixel * shape.block) * shape.value_bytes,
         tile);
  }
}

}  // namespace

std::size_t ImageShape::offset(int image, int channel) const {
  const std::ptrdiff_t pixels = std::ptrdiff_t{extent.height} * extent.width;
  const std::ptrdiff_t values =
      image * pixels * stored_channels() + channel / block * pixels * block + channel % block;
  return static_cast<std::size_t>(values) * value_bytes;
}

Tiling tiling_for(const Extent& image, int kernel, engine::Precision precision) {
  const int side = std::max(image.height, image.width);
  const int whole = side + std::max(padding_before(kernel), padding_after(kernel));
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

namespace {

/// The tiles of one vector of channels of an image, which begins at `image`.
void transform_run(const ConvFft& conv, const PieceImages& piece, const TileRun& run, const std::byte* image,
                   const SpectraShape& spectra, float* to) {
  const Transforms& transforms = piece.reaches ? conv.reaching : conv.inside;
  for_each_tile(conv, piece.shape, spectra, piece.reaches, run,
                [&](std::ptrdiff_t row, TransformPlace& place, std::size_t at, const Tile&) {
                  place.past_caches = piece.past_caches;
                  transforms.forward(place, image + at, to + spectra.at(row, run.channel));
                });
  if (piece.past_caches) finish_stores();
}

void transform_run_back(const ConvFft& conv, const PieceImages& piece, const TileRun& run,
                        const SpectraShape& spectra, const float* from, const float* biases, bool relu,
                        std::byte* image) {
  const Transforms& transforms = piece.reaches ? conv.reaching : conv.inside;
  const int c = run.channel;
  // What earlier tiles reach.
  const int reached = piece.reaches && conv.tiles() > 1 ? conv.kernel - 1 : 0;
  for_each_tile(conv, piece.shape, spectra, piece.reaches, run,
                [&](std::ptrdiff_t row, const TransformPlace& place, std::size_t at, const Tile& tile) {
                  transforms.inverse(place, from + spectra.at(row, c),
                                     {conv.scale(), biases == nullptr ? nullptr : biases + c, relu,
                                      tile.below ? reached : 0, tile.after ? reached : 0},
                                     image + at);
                });
}

/// Calls body(run) for each vector of channels of the images of a piece, with all of its tiles.
template <class Body>
void for_all_vectors(const ConvFft& conv, const SpectraShape& spectra, const Body& body) {
  parallel_for(std::ptrdiff_t{conv.samples} * spectra.panels(), [&](std::ptrdiff_t i) {
    const int vector = static_cast<int>(i);
    body(TileRun{vector % conv.samples, vector / conv.samples * conv.lanes(), {0, conv.tiles()}});
  });
}

/// One vector of channels of an image before the pooling.
ImageShape vector_of(const ConvFft& conv) {
  ImageShape shape = conv.dst;
  shape.extent.channels = shape.block = conv.lanes();
  return shape;
}

/// Prefetches the gradients and choices of the next image, which this thread reads next unless a piece ends. `at` is the
/// place of this call's gradients; the addresses may be invalid.
void fetch_next(const ConvFft& conv, const ConvFftMemory& memory, std::size_t at) {
  constexpr std::size_t kLine = 64;
  const ImageShape stored = conv.stored_dst();
  const std::size_t next = at + stored.image_bytes();
  const auto values = static_cast<std::size_t>(stored.extent.height * stored.extent.width * conv.lanes());
  for (std::size_t i = 0; i < values * stored.value_bytes; i += kLine) fetch(memory.grad_dst + next + i);
  for (std::size_t i = 0; i < values; i += kLine) fetch(memory.choices + next / stored.value_bytes + i);
}

std::byte* scratch_of_thread(const ConvFft& conv, const ConvFftMemory& memory) {
  return memory.vectors + static_cast<std::size_t>(loop_thread()) * conv.vector_bytes();
}

}  // namespace

void transform(const ConvFft& conv, const PieceImages& piece, const std::byte* images,
               const SpectraShape& spectra, float* to) {
  for_all_tiles(conv, spectra, [&](const TileRun& run) {
    transform_run(conv, piece, run, images + piece.shape.offset(piece.first + run.image, run.channel),
                  spectra, to);
  });
}

void transform_back(const ConvFft& conv, const PieceImages& piece, const SpectraShape& spectra,
                    const float* from, const float* biases, bool relu, std::byte* images) {
  const auto run_back = [&](const TileRun& run) {
    transform_run_back(conv, piece, run, spectra, from, biases, relu,
                       images + piece.shape.offset(piece.first + run.image, run.channel));
  };
  // One thread computes all tiles that are added to each other.
  if (piece.reaches && conv.tiles() > 1) {
    for_all_vectors(conv, spectra, run_back);
  } else {
    for_all_tiles(conv, spectra, run_back);
  }
}

void transform_pooled(const ConvFft& conv, const ConvFftMemory& memory, int first, bool past_caches,
                      const SpectraShape& spectra, float* to) {
  const ImageShape vector = vector_of(conv), stored = conv.stored_dst();
  for_all_vectors(conv, spectra, [&](const TileRun& run) {
    std::byte* const scratch = scratch_of_thread(conv, memory);
    const std::size_t at = stored.offset(first + run.image, run.channel);
    fetch_next(conv, memory, at);
    conv.pool->block.backward(memory.grad_dst + at, memory.choices + at / stored.value_bytes, scratch);
    transform_run(conv, {vector, 0, conv.gradient_reaches(), past_caches}, run, scratch, spectra, to);
  });
}

void transform_back_pooled(const ConvFft& conv, const ConvFftMemory& memory, int first,
                           const SpectraShape& spectra, const float* from, const float* biases) {
  const ImageShape vector = vector_of(conv), stored = conv.stored_dst();
  for_all_vectors(conv, spectra, [&](const TileRun& run) {
    std::byte* const scratch = scratch_of_thread(conv, memory);
    transform_run_back(conv, {vector, 0, false}, run, spectra, from, biases, conv.relu, scratch);
    const std::size_t at = stored.offset(first + run.image, run.channel);
    conv.pool->block.forward(scratch, memory.dst + at,
                             memory.choices == nullptr ? nullptr : memory.choices + at / stored.value_bytes);
  });
}

std::vector<Tile> tiles_of(const ConvFft& conv, bool reaches) {
  std::vector<Tile> tiles;
  for (int t = 0; t < conv.tiles(); ++t) tiles.push_back(tile_of(conv, t, reaches));
  return tiles;
}

TransformFlops images_flops(const ConvFft& conv, const ImageShape& shape, bool reaches) {
  const double images = static_cast<double>(conv.batch) * shape.extent.channels;
  TransformFlops sum;
  for (const Tile& tile : reaches ? conv.tiles_reaching : conv.tiles_inside) {
    const TransformFlops one =
        conv.winograd ? winograd_flops(reaches ? WinogradPart::reach : WinogradPart::tile, tile.at)
                      : transform_flops(conv.length, tile.at);
    sum.forward += images * one.forward;
    sum.inverse += images * one.inverse;
  }
  return sum;
}

}  // namespace cifar_mpi::cpu::fft
