#pragma once

#include <string>
#include <vector>

#include "cpu/fft/products.hpp"
#include "cpu/fft/transforms.hpp"

/// The three passes of a convolution with stride 1 by the convolution theorem (Mathieu, Henaff and LeCun 2014).
///
/// With x on places 0 … n − 1 of a circle of N, tap t of the kernel on place t − before modulo N, and hats for transforms,
///
///   forward          y[i]  = Σ_t x[i + t − before]·w[t]     ŷ = x̂·conj(ŵ)
///   data gradient    gx[j] = Σ_t gy[j − t + before]·w[t]    ĝx = ĝy·ŵᵀ
///   weight gradient  gw[t] = Σ_i x[i + t − before]·gy[i]    ĝw = x̂ᵀ·conj(ĝy)
///
/// for each frequency, the products being matrices over images and channels. Sums around the circle are those of the
/// zero-padded image as soon as N ≥ n + max(before, after): what goes around reads or lands in places that are zero or not
/// looked at. The sum of gy over an image, of which the bias gradient is made, is the real part of ĝy at frequency zero.
///
/// Larger images go in tiles of N − kernel + 1 places a side, each with a square of its own. x̂ has of x what the outputs of a
/// tile read, also beyond its edges (overlap-save), ĝy the tile of gy and zeros. So the data gradient of a tile reaches beyond
/// it, and is added to its neighbours' (overlap-add), and both spectra serve the weight gradient as they are.
///
/// Spectra are fp32 and all lie alike: [slot][row][real parts of the channels, imaginary parts], see SpectraShape. A row of an
/// activation's is a tile of an image.
namespace cifar_mpi::cpu::fft {

struct SpectraShape {
  int slots = 0;
  int rows = 0;
  int channels = 0;

  std::ptrdiff_t row_step() const { return std::ptrdiff_t{2} * channels; }
  /// A cache line more than the rows have: slots of a power of two of bytes would fall on few sets of the cache.
  std::ptrdiff_t slot_step() const { return rows * row_step() + 16; }
  std::size_t floats() const { return static_cast<std::size_t>(slots * slot_step()); }
};

/// How an activation lies: channels in blocks, as LrnShape counts them.
struct ImageShape {
  Extent extent;
  int block = 0;
  std::size_t value_bytes = 4;

  std::size_t image_bytes() const { return static_cast<std::size_t>(extent.count()) * value_bytes; }
  /// Bytes before the first pixel of `channel` of `image`.
  std::size_t offset(int image, int channel) const;
};

struct ConvFft {
  VectorSet set = VectorSet::portable;
  int batch = 0;
  int samples = 0;  ///< of a piece; it divides the batch
  int kernel = 0;
  ImageShape src, dst;
  bool relu = false;            ///< at the end of the forward pass
  Transforms images, taps;      ///< from here on as with_kernels fills it in
  Product correlate = nullptr;  ///< with the conjugate of the second
  Product convolve = nullptr;
  int length = 0;
  int tile = 0;  ///< places a side; no less than the image has: it is not cut

  int pieces() const { return batch / samples; }
  int tiles_across() const { return (src.extent.width + tile - 1) / tile; }
  int tiles() const { return (src.extent.height + tile - 1) / tile * tiles_across(); }  ///< of an image
  int slots() const { return slots_of(length); }
  /// Of what comes back.
  float scale() const { return 0.5f / static_cast<float>(length * length); }
  int lanes() const { return lanes_of(set); }
  /// Rows that a product computes at once, and how many times that in `rows`.
  int product_rows() const { return rows_of_tile(lanes()); }
  int product_tiles(int rows) const { return (rows + product_rows() - 1) / product_rows(); }
  /// Of a piece.
  SpectraShape src_spectra() const { return {slots(), samples * tiles(), src.extent.channels}; }
  SpectraShape dst_spectra() const { return {slots(), samples * tiles(), dst.extent.channels}; }
  SpectraShape weight_spectra() const { return {slots(), src.extent.channels, dst.extent.channels}; }
  SpectraShape turned_spectra() const { return {slots(), dst.extent.channels, src.extent.channels}; }
  std::size_t weight_floats() const {
    return static_cast<std::size_t>(kernel) * kernel * src.extent.channels * dst.extent.channels;
  }
};

struct Tiling {
  int length = 0;  ///< one of kLengths; 0: there is none
  int tile = 0;
};

/// For a square kernel over the image: that with the fewest places to transform, of these the shortest length. In bf16 images
/// are not cut: the sums of tiles would be rounded more than once.
Tiling tiling_for(const Extent& image, int kernel, engine::Precision precision);

/// Fills in what follows from the rest: the tiling, which there must be, and the functions.
ConvFft with_kernels(ConvFft conv, engine::Precision precision);

/// Where one program has it. Weights and their gradient are [kernel, kernel, in, out]; images are of the whole batch, their
/// spectra of all pieces one behind the other where not said otherwise.
struct ConvFftMemory {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  const std::byte* grad_dst = nullptr;
  std::byte* grad_src = nullptr;          ///< null: no data gradient
  float* weights = nullptr;               ///< spectra
  float* turned_weights = nullptr;        ///< spectra of the transposed weights, for the data gradient
  float* src_spectra = nullptr;           ///< of one piece unless they are kept
  bool keeps_src_spectra = false;         ///< for the weight gradient
  float* grad_dst_spectra = nullptr;      ///< of one piece unless they are kept
  bool keeps_grad_dst_spectra = false;    ///< for the weight gradient
  float* product = nullptr;               ///< what one piece gives, in the frequencies
  float* grad_weights_spectra = nullptr;  ///< unused without a weight gradient
};

engine::Task plan_fft_weights(const std::string& name, const ConvFft& conv, const float* weights,
                              const ConvFftMemory& memory);
/// Fills src_spectra and dst, + `biases` unless null.
engine::Task plan_fft_forward(const std::string& name, const ConvFft& conv, const ConvFftMemory& memory,
                              const float* biases);
/// Fills grad_dst_spectra, and grad_src unless that is null.
engine::Task plan_fft_data_gradient(const std::string& name, const ConvFft& conv,
                                    const ConvFftMemory& memory);
/// From both kept spectra; `grad_biases` may be null. Each sum goes over the images of the batch in order.
engine::Task plan_fft_weight_gradient(const std::string& name, const ConvFft& conv,
                                      const ConvFftMemory& memory, float* grad_weights, float* grad_biases);

}  // namespace cifar_mpi::cpu::fft
