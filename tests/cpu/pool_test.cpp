#include "cpu/pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cifar_mpi/base/text.hpp"
#include "cpu/lattice.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Precision;
using reference::Array;
using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

struct Case {
  int batch;
  Extent in;
  int kernel;
  int stride;
  Tag format;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.batch << "x" << to_string(c.in) << ", kernel " << c.kernel << ", stride " << c.stride
       << ", format "
       << (c.format == Tag::nhwc   ? "nhwc"
           : c.format == Tag::nchw ? "nchw"
                                   : "blocked");
}

/// Every channel of every image holds each of 0 … pixels − 1 once, less 7: no ties, exact in bf16 up to 256
/// pixels.
Array shuffled_pixels(const Case& c) {
  const auto pixels = static_cast<std::size_t>(c.in.height * c.in.width);
  const auto channels = static_cast<std::size_t>(c.in.channels);
  Array x(static_cast<std::size_t>(c.batch) * pixels * channels);
  std::vector<std::size_t> order(pixels);
  for (std::size_t n = 0; n < static_cast<std::size_t>(c.batch); ++n) {
    for (std::size_t channel = 0; channel < channels; ++channel) {
      std::iota(order.begin(), order.end(), std::size_t{0});
      for (std::size_t i = pixels; i > 1; --i) {
        const auto bits = random4(n, RandomPurpose::synthetic, i, static_cast<std::uint32_t>(channel))[0];
        std::swap(order[i - 1], order[uniform_below(bits, static_cast<std::uint32_t>(i))]);
      }
      for (std::size_t p = 0; p < pixels; ++p) {
        x[(n * pixels + p) * channels + channel] = static_cast<double>(order[p]) - 7.0;
      }
    }
  }
  return x;
}

struct Fixture {
  Fixture(const Case& c, Precision precision)
      : shape{c.batch, c.in, c.kernel, c.stride},
        out{model::same_padding(c.in.height, c.kernel, c.stride).outputs,
            model::same_padding(c.in.width, c.kernel, c.stride).outputs, c.in.channels},
        pool(plan_pool(dnnl, {"pool", c.kernel, c.stride}, c.batch,
                       activations(c.batch, c.in, data_type_of(precision), c.format), c.in, out,
                       data_type_of(precision))),
        src(activations(c.batch, c.in, data_type_of(precision), c.format),
            activations(c.batch, c.in, Type::f32, Tag::nhwc)),
        dst(pool.kernels.forward.describe(dnnl::query::dst_md),
            activations(c.batch, out, Type::f32, Tag::nhwc)),
        workspace(allocate_host(pool.workspace.get_size())),
        x(shuffled_pixels(c)) {
    src.set(dnnl, x);
    lattice::run_kernel(
        dnnl, pool.kernels.forward,
        {reads(DNNL_ARG_SRC, src.desc, src.buffer.data()), writes(DNNL_ARG_DST, dst.desc, dst.buffer.data()),
         writes(DNNL_ARG_WORKSPACE, pool.workspace, workspace.data())});
  }

  Dnnl dnnl;
  reference::PoolShape shape;
  Extent out;
  Pool pool;
  lattice::Tensor src, dst;
  Buffer workspace;
  Array x;
};

class MaxPooling : public ::testing::TestWithParam<Case> {};

TEST_P(MaxPooling, TakesTheMaximumOfEveryWindow) {
  for (const Precision precision : lattice::precisions_here()) {
    const Fixture s(GetParam(), precision);
    const Array wanted = reference::pool_forward(s.shape, s.x);
    lattice::expect_equal(s.dst.get(s.dnnl), wanted, concat("training, ", to_string(precision)));
    const lattice::Tensor again(s.dst.desc, s.dst.plain);
    lattice::run_kernel(s.dnnl, s.pool.kernels.inference,
                        {reads(DNNL_ARG_SRC, s.src.desc, s.src.buffer.data()),
                         writes(DNNL_ARG_DST, again.desc, again.buffer.data())});
    lattice::expect_equal(again.get(s.dnnl), wanted, concat("inference, ", to_string(precision)));
  }
}

TEST_P(MaxPooling, SendsTheGradientToTheMaximum) {
  for (const Precision precision : lattice::precisions_here()) {
    const Fixture s(GetParam(), precision);
    // Small integers: the sum over overlapping windows, at most 9 · 7, is exact in bf16 however it is rounded
    // on the way.
    Array grad_y = lattice::values(s.dst.plain.get_size() / sizeof(float), 9);
    for (double& g : grad_y) g = std::trunc(g * 7.0);
    const lattice::Tensor grad_dst(s.dst.desc, s.dst.plain);
    grad_dst.set(s.dnnl, grad_y);
    const lattice::Tensor grad_src(s.src.desc, s.src.plain);
    lattice::run_kernel(s.dnnl, s.pool.kernels.backward,
                        {reads(DNNL_ARG_DIFF_DST, grad_dst.desc, grad_dst.buffer.data()),
                         reads(DNNL_ARG_WORKSPACE, s.pool.workspace, s.workspace.data()),
                         writes(DNNL_ARG_DIFF_SRC, grad_src.desc, grad_src.buffer.data())});
    lattice::expect_equal(grad_src.get(s.dnnl), reference::pool_grad_x(s.shape, s.x, grad_y),
                          concat(to_string(precision)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, MaxPooling,
    ::testing::Values(Case{2, {12, 12, 64}, 3, 2, Tag::nhwc}, Case{2, {16, 16, 64}, 3, 2, Tag::nChw16c},
                      Case{3, {7, 9, 65}, 3, 2, Tag::nhwc}, Case{3, {7, 9, 3}, 2, 2, Tag::nhwc},
                      Case{1, {7, 9, 4}, 3, 2, Tag::nchw}, Case{2, {9, 7, 20}, 3, 2, Tag::nChw16c},
                      Case{2, {5, 5, 16}, 3, 1, Tag::nhwc}, Case{2, {7, 7, 16}, 2, 3, Tag::nhwc},
                      Case{2, {6, 6, 16}, 5, 2, Tag::nhwc}, Case{2, {1, 1, 8}, 3, 2, Tag::nhwc}));

}  // namespace
}  // namespace cifar_mpi::cpu
