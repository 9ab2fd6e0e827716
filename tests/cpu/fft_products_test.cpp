#include <gtest/gtest.h>

#include <algorithm>
#include <complex>
#include <cstddef>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cpu/fft/conv_fft.hpp"
#include "cpu/fft/products.hpp"
#include "cpu/task_runs.hpp"

/// The products of every available vector set against sums in double precision.
namespace cifar_mpi::cpu::fft {
namespace {

using Complex = std::complex<double>;
using testing::kFp32Unit;

/// Operands whose rows of A are tiles of images, as in the data passes, or channels, as in the weight gradient.
ProductShape product_shape(int lanes, int rows, int panels, bool rows_are_channels) {
  constexpr int kDepth = 5, kLastDepth = 3, kPieces = 3;
  const int row = 2 * lanes;
  ProductShape shape;
  shape.rows = rows;
  shape.columns = panels * lanes - 1;
  shape.depth = kDepth;
  shape.last_depth = kLastDepth;
  shape.pieces = kPieces;
  shape.im = lanes;
  if (rows_are_channels) {
    shape.a = {1, row, 0, kPieces * kDepth * row, 0};
    shape.a.piece = kDepth * row;
  } else {
    shape.a = {row, 1, rows * row, lanes * row, 0};
  }
  shape.b = {0, row, kDepth * row, kPieces * kDepth * row + 7, 0};
  shape.c = {row, 0, 0, rows * row + 3, 0};
  return shape;
}

TEST(FourierProduct, IsTheComplexProductOfMatricesForAllSides) {
  for (const VectorSet set : vector_sets_here()) {
    const int lanes = lanes_of(set);
    for (const int rows : {1, 3, 4, 9, 2 * lanes + 1}) {
      for (const int panels : {1, 2, 3}) {
        for (const bool conjugate : {false, true}) {
          for (const bool rows_are_channels : {false, true}) {
            const ProductShape shape = product_shape(lanes, rows, panels, rows_are_channels);
            const std::vector<float> a = testing::noise_of(5000, 1), b = testing::noise_of(5000, 2);
            std::vector<float> c(static_cast<std::size_t>(panels * shape.c.panel), -7.0f);
            const ProductKind kind = conjugate ? ProductKind::correlate : ProductKind::convolve;
            product_for(set, kind)(shape, a.data(), b.data(), c.data());
            const auto at = [&](const std::vector<float>& values, std::ptrdiff_t i) {
              return Complex(values[static_cast<std::size_t>(i)],
                             values[static_cast<std::size_t>(i + lanes)]);
            };
            for (int m = 0; m < rows; ++m) {
              for (int j = 0; j < shape.columns; ++j) {
                Complex wanted;
                for (int p = 0; p < shape.pieces; ++p) {
                  for (int k = 0; k < shape.depth_of(p); ++k) {
                    const Complex right =
                        at(b, j / lanes * shape.b.panel + j % lanes + p * shape.b.piece + k * shape.b.depth);
                    wanted += at(a, shape.a.to_row(m, lanes) + p * shape.a.piece + k * shape.a.depth) *
                              (conjugate ? std::conj(right) : right);
                  }
                }
                // Three sums of 13 terms of at most 2·2, whose results are subtracted.
                EXPECT_LE(std::abs(at(c, j / lanes * shape.c.panel + j % lanes + m * shape.c.row) - wanted),
                          4.0 * 13 * 3 * kFp32Unit)
                    << name_of(set) << ", row " << m << " of " << rows << ", column " << j << " of "
                    << shape.columns;
              }
            }
          }
        }
      }
    }
  }
}

TEST(FourierProduct, OfPartsSumsToTheBitsOfTheWhole) {
  for (const VectorSet set : vector_sets_here()) {
    const int lanes = lanes_of(set);
    for (const int rows : {1, 4, 9, 17}) {
      for (const int panels : {1, 3}) {
        ProductShape shape = product_shape(lanes, rows, panels, true);
        shape.last_depth = shape.depth;
        shape.c.panel = rows * shape.c.row;
        const std::vector<float> a = testing::noise_of(5000, 1), b = testing::noise_of(5000, 2);
        std::vector<float> whole(static_cast<std::size_t>(panels * shape.c.panel));
        product_for(set, ProductKind::correlate)(shape, a.data(), b.data(), whole.data());
        const int pieces = std::exchange(shape.pieces, 1);
        shape.c.row = 3 * lanes;
        shape.c.panel = rows * shape.c.row;
        std::vector<float> sums(static_cast<std::size_t>(panels * shape.c.panel));
        for (int p = 0; p < pieces; ++p) {
          product_for(set, ProductKind::sum)(shape, a.data() + p * shape.a.piece,
                                             b.data() + p * shape.b.piece, sums.data());
        }
        combine_sums(rows * panels, lanes, sums.data());
        for (int row = 0; row < rows * panels; ++row) {
          const float* const found = &sums[static_cast<std::size_t>(3 * lanes * row)];
          const float* const wanted = &whole[static_cast<std::size_t>(2 * lanes * row)];
          EXPECT_TRUE(std::equal(wanted, wanted + 2 * lanes, found))
              << name_of(set) << ", row " << row % rows << " of " << rows << ", panel " << row / rows;
        }
      }
    }
  }
}

TEST(RealProduct, IsTheProductOfMatricesAndTheSumOfItsPartsForAllSides) {
  for (const VectorSet set : vector_sets_here()) {
    const int lanes = lanes_of(set);
    for (const int rows : {1, 3, 4, 9, 2 * lanes + 1}) {
      for (const int panels : {1, 2, 3, 7}) {
        for (const bool rows_are_channels : {false, true}) {
          SCOPED_TRACE(concat(name_of(set), ", ", rows, " rows, ", panels, " panels"));
          const ProductShape shape = product_shape(lanes, rows, panels, rows_are_channels);
          const std::vector<float> a = testing::noise_of(5000, 1), b = testing::noise_of(5000, 2);
          std::vector<float> whole(static_cast<std::size_t>(panels * shape.c.panel), -7.0f), sums = whole;
          product_for(set, ProductKind::real)(shape, a.data(), b.data(), whole.data());
          for (int m = 0; m < rows; ++m) {
            for (int j = 0; j < shape.columns; ++j) {
              double wanted = 0.0;
              for (int p = 0; p < shape.pieces; ++p) {
                for (int k = 0; k < shape.depth_of(p); ++k) {
                  const std::ptrdiff_t left =
                      shape.a.to_row(m, lanes) + p * shape.a.piece + k * shape.a.depth;
                  const std::ptrdiff_t right =
                      j / lanes * shape.b.panel + j % lanes + p * shape.b.piece + k * shape.b.depth;
                  wanted += double{a[static_cast<std::size_t>(left)]} * b[static_cast<std::size_t>(right)];
                }
              }
              const std::ptrdiff_t at = j / lanes * shape.c.panel + j % lanes + m * shape.c.row;
              // A sum of 13 terms of at most 1.
              EXPECT_NEAR(whole[static_cast<std::size_t>(at)], wanted, 13.0 * 13 * kFp32Unit);
            }
          }
          for (int p = 0; p < shape.pieces; ++p) {
            ProductShape part = shape;
            part.pieces = 1;
            part.last_depth = shape.depth_of(p);
            product_for(set, p == 0 ? ProductKind::real : ProductKind::real_sum)(
                part, a.data() + p * shape.a.piece, b.data() + p * shape.b.piece, sums.data());
          }
          EXPECT_EQ(sums, whole);
        }
      }
    }
  }
}

TEST(FourierProduct, OfSomeRowsLeavesTheOthers) {
  for (const VectorSet set : vector_sets_here()) {
    const int lanes = lanes_of(set), tile = rows_of_tile(lanes), rows = 3 * tile + 1;
    const std::vector<float> a = testing::noise_of(5000, 1), b = testing::noise_of(5000, 2);
    const ProductShape shape = product_shape(lanes, rows, 2, true);
    std::vector<float> whole(static_cast<std::size_t>(2 * shape.c.panel)), parts(whole.size());
    const Product product = product_for(set, ProductKind::correlate);
    product(shape, a.data(), b.data(), whole.data());
    ProductShape part = shape;
    part.first = tile;
    part.rows = rows - tile;
    product(part, a.data(), b.data(), parts.data());
    for (int i = 0; i < tile * shape.c.row; ++i) EXPECT_EQ(parts[static_cast<std::size_t>(i)], 0.0f);
    part.first = 0;
    part.rows = tile;
    product(part, a.data(), b.data(), parts.data());
    EXPECT_EQ(parts, whole) << name_of(set);
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu::fft
