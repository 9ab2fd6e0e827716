#pragma once

#include "cpu/fft/conv_fft.hpp"

/// Images to the spectra of their tiles and back; threads share the tiles.
namespace cifar_mpi::cpu::fft {

/// Places of the padding before an image.
constexpr int padding_before(int kernel) { return (kernel - 1) / 2; }

/// The images of a piece, of which the first is `first`; `reaches`: with what a tile's outputs read beyond its edges.
void transform(const ConvFft& conv, const ImageShape& shape, const std::byte* images, int first, bool reaches,
               const SpectraShape& spectra, float* to);

/// `reaches`: tiles reach beyond their edges, and are added up. `biases` may be null.
void transform_back(const ConvFft& conv, const ImageShape& shape, const SpectraShape& spectra,
                    const float* from, bool reaches, const float* biases, bool relu, std::byte* images,
                    int first);

/// Of the images of the batch.
TransformFlops images_flops(const ConvFft& conv, const ImageShape& shape, bool reaches);

}  // namespace cifar_mpi::cpu::fft
