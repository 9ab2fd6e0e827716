#include "cpu/fft_conv.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

/// The passes of a convolution by FFT against the double-precision loops.
namespace cifar_mpi::cpu::fft {
namespace {

class FftConvolution : public ::testing::TestWithParam<Case> {};

/// The results of the loops, computed once for all vector sets.
struct Wanted {
  explicit Wanted(const Fixture& f)
      : y(f.wanted_y()),
        grad_x(reference::conv_grad_x(f.shape, f.weights, f.grad_y)),
        grad_weights(reference::conv_grad_weights(f.shape, f.x, f.grad_y)),
        grad_biases(reference::grad_biases(f.shape.out_channels, f.grad_y)) {}
  Array y, grad_x, grad_weights, grad_biases;
};

TEST_P(FftConvolution, HasTheReferenceResultsInAllPasses) {
  const Case& c = GetParam();
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    if (!c.winograd && tiling_for(c.in, c.kernel, precision).length == 0) continue;
    const Wanted wanted(Fixture(c, VectorSet::portable, precision));
    for (const VectorSet set : vector_sets_here()) {
      const int lanes = lanes_of(set);
      if (c.out_channels % lanes != 0) continue;
      const int block = c.in.channels % lanes == 0 ? 0 : lanes;
      SCOPED_TRACE(concat(name_of(set), ", ", to_string(precision)));
      Fixture f(c, set, precision, block);
      const Fixture::Passes found = f.run();
      const double rounding = precision == Precision::bf16 ? testing::kBf16Unit / 2.0 : 0.0;
      const auto tolerance_of = [&](double terms) {
        return c.winograd ? winograd_tolerance(terms) : tolerance(f.conv.length, terms);
      };
      EXPECT_LE(relative_distance(found.y, wanted.y), tolerance_of(c.in.channels) + rounding);
      EXPECT_LE(relative_distance(found.grad_x, wanted.grad_x), tolerance_of(c.out_channels) + rounding);
      const int rows = c.batch * f.conv.tiles();
      EXPECT_LE(relative_distance(found.grad_weights, wanted.grad_weights), tolerance_of(rows));
      if (!c.winograd) {
        EXPECT_LE(relative_distance(found.grad_biases, wanted.grad_biases), tolerance_of(rows));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, FftConvolution,
    ::testing::Values(Case{3, {12, 12, 64}, 64, 5, true}, Case{16, {12, 12, 16}, 16, 5, true, 2},
                      Case{1, {7, 7, 16}, 32, 3}, Case{2, {7, 5, 8}, 24, 3, true},
                      Case{15, {6, 6, 16}, 16, 3, false, 3}, Case{17, {5, 7, 16}, 16, 4},
                      Case{2, {15, 13, 16}, 48, 3, true}, Case{2, {13, 12, 4}, 12, 4},
                      Case{2, {11, 9, 16}, 16, 7, true}, Case{1, {25, 25, 16}, 16, 7},
                      Case{2, {24, 24, 16}, 16, 5, true, 2}, Case{1, {31, 31, 16}, 16, 3},
                      Case{1, {29, 27, 16}, 16, 7, true}, Case{2, {1, 1, 16}, 16, 3},
                      Case{2, {2, 3, 16}, 16, 7}, Case{3, {8, 8, 16}, 16, 1}, Case{2, {7, 7, 256}, 16, 3},
                      Case{2, {7, 7, 16}, 256, 3}, Case{128, {7, 7, 16}, 16, 3, true, 8},
                      Case{2, {8, 8, 64}, 64, 3}, Case{2, {16, 16, 32}, 32, 3, true, 2},
                      Case{3, {32, 32, 16}, 16, 3, true, 3}, Case{2, {17, 10, 16}, 32, 3, false, 2},
                      Case{1, {8, 33, 16}, 16, 3, true}, Case{1, {33, 24, 16}, 16, 4, true},
                      Case{1, {36, 37, 16}, 16, 7}, Case{2, {31, 31, 24}, 64, 3},
                      Case{6, {7, 6, 42}, 16, 3, true, 3}));

INSTANTIATE_TEST_SUITE_P(Winograd, FftConvolution, ::testing::ValuesIn([] {
                           std::vector<Case> cases;
                           for (const auto& [batch, in, out, pieces] :
                                {std::tuple{1, Extent{4, 4, 16}, 16, 1},
                                 {2, {8, 8, 64}, 64, 2},
                                 {3, {16, 16, 32}, 32, 3},
                                 {2, {32, 32, 16}, 16, 1},
                                 {15, {6, 6, 16}, 16, 5},
                                 {1, {1, 1, 16}, 32, 1},
                                 {2, {2, 3, 16}, 16, 1},
                                 {2, {5, 4, 16}, 48, 1},
                                 {1, {7, 9, 80}, 112, 1},
                                 {2, {17, 10, 16}, 32, 2},
                                 {2, {13, 12, 4}, 12, 1},
                                 {2, {7, 5, 8}, 24, 1},
                                 {1, {31, 15, 96}, 16, 1},
                                 {2, {3, 33, 16}, 256, 2},
                                 {2, {7, 9, 34}, 16, 1},
                                 {2, {7, 9, 21}, 32, 1}}) {
                             for (const bool relu : {false, true})
                               cases.push_back({batch, in, out, 3, relu, pieces, true});
                           }
                           return cases;
                         }()));

/// Both ways.
class FftConv : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Winograd, FftConv, ::testing::Bool());

TEST_P(FftConv, ReadsAndWritesBlocksOfChannels) {
  for (const VectorSet set : vector_sets_here()) {
    for (const Extent& in : {Extent{7, 6, 32}, {11, 17, 32}}) {
      const Case c{2, in, 48, 3, true, 1, GetParam()};
      Fixture nhwc(c, set, Precision::fp32), blocks(c, set, Precision::fp32, 16);
      const Fixture::Passes wanted = nhwc.run(), found = blocks.run();
      EXPECT_EQ(found.y, wanted.y);
      EXPECT_EQ(found.grad_x, wanted.grad_x);
      EXPECT_EQ(found.grad_weights, wanted.grad_weights);
      EXPECT_EQ(found.grad_biases, wanted.grad_biases);
    }
  }
}

TEST_P(FftConv, GivesTheSameBitsOnAnyNumberOfThreadsAndInAnyPieces) {
  for (const VectorSet set : vector_sets_here()) {
    for (const Extent& in : {Extent{7, 7, 32}, {11, 17, 32}}) {
      Fixture alone({12, in, 16, 3, true, 1, GetParam()}, set, Precision::fp32);
      const Fixture::Passes wanted = alone.run();
      for (const int threads : {2, 3, 7, 40}) {
        const testing::Threads with(threads);
        for (const bool shares_pieces : {true, false}) {
          SCOPED_TRACE(concat(threads, " threads share ", shares_pieces ? "each piece" : "the pieces"));
          Fixture many({12, in, 16, 3, true,
                        !shares_pieces ? 12
                        : threads == 2 ? 1
                                       : 4,
                        GetParam()},
                       set, Precision::fp32);
          if (!shares_pieces) many.conv.concurrent = threads;
          const Fixture::Passes found = many.run();
          EXPECT_EQ(found.y, wanted.y);
          EXPECT_EQ(found.grad_x, wanted.grad_x);
          EXPECT_EQ(found.grad_weights, wanted.grad_weights);
          EXPECT_EQ(found.grad_biases, wanted.grad_biases);
          engine::Lane lane;
          const Fixture::Passes passing = many.run(lane, false);
          EXPECT_EQ(passing.y, wanted.y);
          EXPECT_EQ(passing.grad_x, wanted.grad_x);
        }
      }
    }
  }
}

TEST_P(FftConv, GivesTheSameBitsWhenItTransformsTheImagesAgain) {
  for (const VectorSet set : vector_sets_here()) {
    for (const Extent& in : {Extent{7, 7, 32}, {11, 17, 16}}) {
      const Fixture::Passes wanted =
          Fixture({12, in, 16, 3, false, 1, GetParam()}, set, Precision::fp32).run();
      for (const int pieces : {1, 4, 12}) {
        Fixture again({12, in, 16, 3, false, pieces, GetParam()}, set, Precision::fp32);
        again.conv.recomputes = true;
        const Fixture::Passes found = again.run();
        EXPECT_EQ(found.y, wanted.y);
        EXPECT_EQ(found.grad_x, wanted.grad_x);
        EXPECT_EQ(found.grad_weights, wanted.grad_weights);
      }
    }
  }
}

TEST_P(FftConv, GivesTheSameBitsWhenSpectraAreStoredPastTheCaches) {
  for (const VectorSet set : vector_sets_here()) {
    for (const Extent& in : {Extent{7, 7, 32}, {11, 17, 24}}) {
      const Case c{12, in, 16, 3, false, 3, GetParam()};
      const int block = in.channels % lanes_of(set) == 0 ? 0 : lanes_of(set);
      const Fixture::Passes wanted = Fixture(c, set, Precision::fp32, block).run();
      for (const int threads : {1, 3}) {
        for (const int concurrent : {1, threads}) {
          const testing::Threads with(threads);
          Fixture past(c, set, Precision::fp32, block);
          past.conv.least_past_caches = 0;
          past.conv.concurrent = concurrent;
          const Fixture::Passes found = past.run();
          EXPECT_EQ(found.y, wanted.y);
          EXPECT_EQ(found.grad_x, wanted.grad_x);
          EXPECT_EQ(found.grad_weights, wanted.grad_weights);
          EXPECT_EQ(found.grad_biases, wanted.grad_biases);
        }
      }
    }
  }
}

TEST(FftTasks, ReportAnErrorOfTheLaneAfterTheLoop) {
  struct BrokenLane : engine::Lane {
    void make_progress() override { throw std::runtime_error("a rank has died"); }
  };
  const testing::Threads threads(2);
  Fixture f({12, {7, 7, 16}, 16, 3, true, 12}, VectorSet::portable, Precision::fp32);
  const Fixture::Passes wanted = f.run();
  f.conv.concurrent = 2;
  BrokenLane broken;
  int errors = 0;
  for (int run = 0; run < 20; ++run) {
    try {
      f.run(broken, true);
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "a rank has died");
      ++errors;
    }
  }
  EXPECT_GE(errors, 1);
  EXPECT_EQ(f.run().y, wanted.y);
}

}  // namespace
}  // namespace cifar_mpi::cpu::fft
