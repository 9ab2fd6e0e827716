#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpu/fft/products.hpp"
#include "cpu/fft/transforms.hpp"
#include "cpu/pool.hpp"

/// The three passes of a convolution with stride 1 by the convolution theorem (Mathieu, Henaff and LeCun
/// 2014).
///
/// Let x occupy places 0 … n − 1 of a circle of N, let tap t of the kernel be at t − before modulo N, and let
/// hats denote transforms. Then
///
///   forward          y[i]  = Σ_t x[i + t − before]·w[t]     ŷ = x̂·conj(ŵ)
///   data gradient    gx[j] = Σ_t gy[j − t + before]·w[t]    ĝx = ĝy·ŵᵀ
///   weight gradient  gw[t] = Σ_i x[i + t − before]·gy[i]    ĝw = x̂ᵀ·conj(ĝy)
///
/// for each frequency; the products are of matrices over images and channels. Sums around the circle equal
/// those of the zero-padded image once N ≥ n + max(before, after): wrapped terms read zeros, or fall on
/// places that are not used. The bias gradient needs the sum of gy over an image, which is the real part of
/// ĝy at frequency zero.
///
/// Larger images are cut into tiles of N − kernel + 1 places a side, each on its own square. x̂ covers what
/// the outputs of a tile read, including pixels beyond its edges (overlap-save); ĝy covers the tile of gy and
/// zeros. The data gradient of a tile therefore reaches beyond the tile and is added to its neighbours'
/// (overlap-add), and the weight gradient can use both spectra directly.
///
/// All spectra are fp32 with one layout: [slot][panel][row][real parts of the panel's channels, imaginary parts], see
/// SpectraShape. A row of an activation's spectra is a tile of an image. Winograd's filtering (winograd.hpp) has
/// the same layout without imaginary parts. So the operands of a tile of a product are a few contiguous runs of memory.
namespace cifar_mpi::cpu::fft {

/// A panel has as many channels as the vector set has lanes. Lanes beyond the last channel are zero.
struct SpectraShape {
  int slots = 0;
  int rows = 0;
  int channels = 0;
  int parts = 2;  ///< real and imaginary; 1: real; 3: the sums of ProductKind::sum
  int lanes = 0;

  int panels() const { return (channels + lanes - 1) / lanes; }
  std::ptrdiff_t row_step() const { return std::ptrdiff_t{parts} * lanes; }
  std::ptrdiff_t panel_step() const { return rows * row_step(); }
  /// Slots are padded by a cache line: slots of a power of two of bytes would map to few sets of the cache.
  std::ptrdiff_t slot_step() const { return panels() * panel_step() + 16; }
  std::size_t floats() const { return static_cast<std::size_t>(slots * slot_step()); }
  /// Floats before a row of the panel that begins with `channel`.
  std::ptrdiff_t at(std::ptrdiff_t row, std::ptrdiff_t channel) const {
    return channel / lanes * panel_step() + row * row_step();
  }
};

/// Layout of an activation: channels in blocks, as LrnShape counts them.
struct ImageShape {
  Extent extent;
  int block = 0;
  std::size_t value_bytes = 4;

  /// With those that pad the last block, which are zero.
  int stored_channels() const { return (extent.channels + block - 1) / block * block; }
  std::size_t image_bytes() const { return offset(1, 0); }
  /// Bytes before the first pixel of `channel` of `image`.
  std::size_t offset(int image, int channel) const;
};

/// A tile of an image.
struct Tile {
  Placement at;
  std::ptrdiff_t first_pixel = 0;
  bool below = false;  ///< another tile
  bool after = false;  ///< another tile of its row
};

/// A max-pooling after the convolution. A thread pools one vector of channels of an image at a time, so the output of
/// the convolution and its gradient stay in the cache, and only pooled values and their gradients are stored.
struct PoolAfter {
  Pool pool;  ///< whose blocks are vectors
  BlockPool block;
};

/// The length of a tile of winograd.hpp with what it reaches.
inline constexpr int kWinogradLength = 6;

struct ConvFft {
  VectorSet set = VectorSet::portable;
  int batch = 0;
  int samples = 0;  ///< of a piece; it divides the batch
  /// Above 1: so many threads each compute whole pieces, so that spectra stay in the cache of one core.
  /// 1: threads share each piece.
  int concurrent = 1;
  /// The weight gradient transforms the images again, one piece at a time, instead of keeping their spectra.
  /// That is for one thread; the bits are the same.
  bool recomputes = false;
  int kernel = 0;
  ImageShape src, dst;
  bool relu = false;                      ///< at the end of the forward pass
  std::shared_ptr<const PoolAfter> pool;  ///< after the ReLU; null: none
  bool winograd = false;                  ///< F(4x4, 3x3), see winograd.hpp: `kernel` is 3
  /// Spectra for a later task that have at least so many bytes are stored past the caches. That took 0.977 of the time
  /// of a step of `fast94` (batch 256, one thread of Zen 5).
  std::size_t least_past_caches = std::size_t{16} << 20;
  Transforms reaching;  ///< of tiles with what they reach; with_kernels sets this and all later members
  Transforms inside;    ///< of tiles alone
  Transforms taps;
  Product correlate = nullptr;
  Product convolve = nullptr;
  Product sum = nullptr;
  Product real = nullptr;      ///< instead of correlate and convolve in slots of real values
  Product real_sum = nullptr;  ///< instead of sum
  int length = 0;
  int tile = 0;                                    ///< places a side; at least the image's size: no cut
  std::vector<Tile> tiles_reaching, tiles_inside;  ///< of an image, in rows

  /// In the backward passes the tiles of gy reach beyond their edges, and those of x or gx do not.
  bool gradient_reaches() const { return winograd; }
  int pieces() const { return batch / samples; }
  int tiles_across() const { return (src.extent.width + tile - 1) / tile; }
  int tiles() const { return (src.extent.height + tile - 1) / tile * tiles_across(); }  ///< of an image
  int slots() const { return winograd ? length * length : slots_of(length); }
  int parts() const { return winograd ? 1 : 2; }  ///< of a value in a slot
  bool is_real(int slot) const { return winograd || is_real_slot(length, slot); }
  /// Size of the transformed result.
  float scale() const { return winograd ? 1.0f : 0.5f / static_cast<float>(length * length); }
  int lanes() const { return lanes_of(set); }
  /// Of the images at `dst` and `grad_dst`.
  ImageShape stored_dst() const {
    return pool == nullptr ? dst : ImageShape{pool->pool.out(), dst.block, dst.value_bytes};
  }
  /// Values of `dst`.
  std::size_t choices() const {
    return static_cast<std::size_t>(batch) * stored_dst().image_bytes() / dst.value_bytes;
  }
  /// Of a vector of channels of an image before the pooling.
  std::size_t vector_bytes() const {
    return static_cast<std::size_t>(dst.extent.height * dst.extent.width * lanes()) * dst.value_bytes;
  }
  /// A multiple of the rows of every kind of tile, and the multiple of that in `rows`.
  int product_rows() const { return rows_of_real_tile(lanes()); }
  int product_tiles(int rows) const { return (rows + product_rows() - 1) / product_rows(); }
  /// Values of a piece.
  SpectraShape src_spectra() const {
    return {slots(), samples * tiles(), src.extent.channels, parts(), lanes()};
  }
  SpectraShape dst_spectra() const {
    return {slots(), samples * tiles(), dst.extent.channels, parts(), lanes()};
  }
  SpectraShape weight_spectra() const {
    return {slots(), src.extent.channels, dst.extent.channels, parts(), lanes()};
  }
  SpectraShape transposed_spectra() const {
    return {slots(), dst.extent.channels, src.extent.channels, parts(), lanes()};
  }
  /// Of the weight gradient.
  SpectraShape gradient_spectra() const {
    return {slots(), src.extent.channels, dst.extent.channels, recomputes && !winograd ? 3 : parts(),
            lanes()};
  }
  std::size_t weight_floats() const {
    return static_cast<std::size_t>(kernel) * kernel * src.extent.channels * dst.extent.channels;
  }
};

struct Tiling {
  int length = 0;  ///< one of kLengths; 0: no tiling fits
  int tile = 0;
};

/// The tiling for a square kernel over the image: fewest places to transform, then shortest length. bf16
/// images are not cut, because the sums of tiles would be rounded more than once.
Tiling tiling_for(const Extent& image, int kernel, engine::Precision precision);

/// Sets the members that follow from others: the tiling, which must exist, and the functions.
ConvFft with_kernels(ConvFft conv, engine::Precision precision);

/// Addresses in one program. Weights and their gradient are [kernel, kernel, in, out]; images are of the
/// whole batch, and their spectra of all pieces in sequence, unless noted.
struct ConvFftMemory {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  const std::byte* grad_dst = nullptr;
  std::byte* grad_src = nullptr;        ///< null: no data gradient
  float* weights = nullptr;             ///< spectra
  float* transposed_weights = nullptr;  ///< spectra of the transposed weights, for the data gradient
  float* src_spectra = nullptr;         ///< of conv.concurrent pieces, or of all for plan_fft_weight_gradient
  bool keeps_src_spectra = false;       ///< for the weight gradient, which else transforms the images itself
  float* grad_dst_spectra = nullptr;    ///< of conv.concurrent pieces unless they are kept
  bool keeps_grad_dst_spectra = false;  ///< for the weight gradient
  float* product = nullptr;             ///< of conv.concurrent pieces, in the frequency domain
  float* grad_weights_spectra = nullptr;  ///< unused without a weight gradient
  std::byte* vectors = nullptr;           ///< [threads, conv.vector_bytes()] scratch of a pooling
  std::uint8_t* choices = nullptr;        ///< of a pooling, [values of dst]; null: evaluation
};

engine::Task plan_fft_weights(const std::string& name, const ConvFft& conv, const float* weights,
                              const ConvFftMemory& memory);
/// Fills src_spectra and dst, + `biases` unless null.
engine::Task plan_fft_forward(const std::string& name, const ConvFft& conv, const ConvFftMemory& memory,
                              const float* biases);
/// Fills grad_dst_spectra, and grad_src unless that is null.
engine::Task plan_fft_data_gradient(const std::string& name, const ConvFft& conv,
                                    const ConvFftMemory& memory);
/// Both gradients, of a convolution that recomputes and has no biases.
engine::Task plan_fft_gradients(const std::string& name, const ConvFft& conv, const ConvFftMemory& memory,
                                float* grad_weights);
/// Uses the kept spectra; `grad_biases` may be null. Each sum runs over the images of the batch in order.
engine::Task plan_fft_weight_gradient(const std::string& name, const ConvFft& conv,
                                      const ConvFftMemory& memory, float* grad_weights, float* grad_biases);

// Conversion between images and the spectra of their tiles; threads share the tiles.

/// `reaches`: with what their outputs read beyond their edges.
std::vector<Tile> tiles_of(const ConvFft& conv, bool reaches);

/// Places of the padding before an image.
constexpr int padding_before(int kernel) { return (kernel - 1) / 2; }

/// The images of a piece, from `first` on.
struct PieceImages {
  const ImageShape& shape;
  int first = 0;
  bool reaches = false;      ///< tiles include what their outputs read beyond their edges, and are added
  bool past_caches = false;  ///< how the spectra are stored
};

void transform(const ConvFft& conv, const PieceImages& piece, const std::byte* images,
               const SpectraShape& spectra, float* to);
/// `biases` may be null.
void transform_back(const ConvFft& conv, const PieceImages& piece, const SpectraShape& spectra,
                    const float* from, const float* biases, bool relu, std::byte* images);

/// The same of the convolution's output if a pooling follows: from the gradients of pooled values, and to pooled
/// values.
void transform_pooled(const ConvFft& conv, const ConvFftMemory& memory, int first, bool past_caches,
                      const SpectraShape& spectra, float* to);
void transform_back_pooled(const ConvFft& conv, const ConvFftMemory& memory, int first,
                           const SpectraShape& spectra, const float* from, const float* biases);

/// Of the images of the batch.
TransformFlops images_flops(const ConvFft& conv, const ImageShape& shape, bool reaches);

}  // namespace cifar_mpi::cpu::fft
