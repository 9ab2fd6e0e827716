#pragma once

#include "cpu/fft/conv_fft.hpp"

/// Conversion between images and the spectra of their tiles; threads share the tiles.
namespace cifar_mpi::cpu::fft {

/// Places of the padding before an image.
constexpr int padding_before(int kernel) { return (kernel - 1) / 2; }

/// The images of a piece, from `first` on; `reaches`: includes what a tile's outputs read beyond its edges.
void transform(const ConvFft& conv, const ImageShape& shape, const std::byte* images, int first, bool reaches,
               const SpectraShape& spectra, float* to);

/// `reaches`: tiles reach beyond their edges and are summed. `biases` may be null.
void transform_back(const ConvFft& conv, const ImageShape& shape, const SpectraShape& spectra,
                    const float* from, bool reaches, const float* biases, bool relu, std::byte* images,
                    int first);

/// Of the images of the batch.
TransformFlops images_flops(const ConvFft& conv, const ImageShape& shape, bool reaches);

}  // namespace cifar_mpi::cpu::fft
