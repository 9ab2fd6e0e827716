#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd.hpp"

/// The products of a convolution by FFT: one product of complex matrices per frequency.
///
///   C[m, j] = Σ_k A[m, k]·B[k, j], or with the conjugate of B
///
/// The three passes differ in strides only. A complex product consists of three real ones (attributed to
/// Gauss; Knuth, The Art of Computer Programming, volume 2, 4.6.4): with a = x + iy and b = u + iv, ab = (x +
/// y)u − y(u + v) + i((x + y)u − x(u − v)). The three are summed over k and combined at the end.
///
/// Measured for conv2 of the tutorial, batch 128, on one core whose additions share the two 512-bit pipes
/// with its multiplications: 3.4 ms a pass, and 3.0 with four products. Where additions have their own pipes
/// (Zen 4, 256-bit) three products took 10 ms for all passes at 85 % of the FMA peak, which four cannot reach
/// (12.6 at 90 %). oneDNN 2.6's batched matmul of real matrices twice as wide, which corresponds to four,
/// takes 4.8 ms in the same pieces of 16 images, half the FMA peak.
///
/// Operands are in the L3 cache or in memory, so a complex product prefetches a cache line per k. Without it
/// all passes of conv2 took 13.5 ms instead of 10 (Zen 4, one thread, within a training step).
namespace cifar_mpi::cpu::fft {

/// Steps in floats from one element of an operand to the next. Channels lie in panels of as many as the vector set has
/// lanes; the imaginary parts of a panel follow its real parts.
struct ProductSide {
  std::ptrdiff_t row = 0;    ///< of A and C: over m, of A within a panel
  std::ptrdiff_t depth = 0;  ///< of A and B: over k, within a piece
  std::ptrdiff_t piece = 0;  ///< of A and B: over the pieces in which k is cut
  std::ptrdiff_t panel = 0;  ///< over as many rows of A, or columns of B and C, as there are lanes
  std::ptrdiff_t next = 0;   ///< of A and B: to the next product's; 0: that is not fetched

  std::ptrdiff_t to_row(int m, int lanes) const { return m / lanes * panel + m % lanes * row; }
};

/// Rows [first, first + rows) of a product, whose operands are given from row 0 on. For each element of C, k runs over
/// `pieces` times `depth` values in this order, in the last piece over `last_depth`.
struct ProductShape {
  int first = 0;  ///< a multiple of the rows of a tile
  int rows = 0;
  int columns = 0;  ///< the last panel of B and C may have padding
  int depth = 0;
  int last_depth = 0;
  int pieces = 1;
  /// Floats from real to imaginary parts: the lanes. With a constant in its place g++ 12 loads 16 floats for each value
  /// of A, which with 256 channels took 1.3 times as long.
  int im = 0;
  ProductSide a, b, c;

  int depth_of(int piece) const { return piece + 1 == pieces ? last_depth : depth; }
};

/// `correlate` multiplies by the conjugate of B, `convolve` by B. `sum` also takes the conjugate, but C holds
/// the three real sums, `im` apart, and each product adds to them: products over parts of k, in order, give
/// the bits of one product over all k.
/// `real` and `real_sum` multiply real matrices and ignore `im`; `real_sum` adds to C.
enum class ProductKind : std::uint8_t { correlate, convolve, sum, real, real_sum };
using Product = void (*)(const ProductShape& shape, const float* a, const float* b, float* c);
Product product_for(VectorSet set, ProductKind kind);
Product real_product_for(VectorSet set, bool adds);
/// Replaces the sums of `rows` rows of a panel of C by real and imaginary parts.
void combine_sums(int rows, int lanes, float* sums);

/// Rows of C that vectors of `lanes` floats compute at once, or half as many.
constexpr int rows_of_tile(int lanes) { return lanes == 16 ? 8 : 3; }
/// Rows of C that products of real matrices compute at once; the last ones may be fewer.
constexpr int rows_of_real_tile(int lanes) { return lanes == 16 ? 16 : 12; }

/// Floating-point operations of a product for each element of C and each k: an addition and a multiplication, and those
/// of three real products.
inline constexpr double kRealFlops = 2.0, kComplexFlops = 6.0;

}  // namespace cifar_mpi::cpu::fft
