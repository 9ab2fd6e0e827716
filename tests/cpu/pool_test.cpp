#include "cpu/pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/lattice.hpp"
#include "cpu/pool_group.hpp"
#include "cpu/task_runs.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Precision;
using reference::Array;
using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

struct PoolCase {
  int batch;
  Extent in;
  int kernel;
  int stride;
  Tag format;
};

void PrintTo(const PoolCase& c, std::ostream* out) {
  *out << c.batch << "x" << to_string(c.in) << ", kernel " << c.kernel << ", stride " << c.stride
       << ", format "
       << (c.format == Tag::nhwc   ? "nhwc"
           : c.format == Tag::nchw ? "nchw"
                                   : "blocked");
}

constexpr float kPoolNaN = std::numeric_limits<float>::quiet_NaN();

/// Few different values, so that most windows have several largest ones.
Array with_ties(std::size_t count, std::uint32_t salt) {
  Array values = lattice::values(count, salt);
  for (double& value : values) value = std::round(value * 2.0);
  return values;
}

/// Small integers: sums over overlapping windows are exact also in bf16.
Array exact_gradients(std::size_t count) {
  Array values = lattice::values(count, 9);
  for (double& value : values) value = std::trunc(value * 7.0);
  return values;
}

/// One pooling with memory for all of its operands.
struct PoolFixture {
  PoolFixture(const PoolCase& c, Precision precision)
      : shape{c.batch, c.in, c.kernel, c.stride},
        src(activations(c.batch, c.in, data_type_of(precision), c.format),
            activations(c.batch, c.in, Type::f32, Tag::nhwc)),
        grad_src(src.desc, src.plain),
        planned(plan_pool({"pool", c.kernel, c.stride}, c.batch, src.desc, c.in).value()),
        pool(planned.pool),
        dst(activations(c.batch, pool.out(), data_type_of(precision), planned.format),
            activations(c.batch, pool.out(), Type::f32, Tag::nhwc)),
        grad_dst(dst.desc, dst.plain),
        choices(pool.values_in(pool.out())) {}

  std::size_t inputs() const { return src.plain.get_size() / sizeof(float); }
  std::size_t outputs() const { return dst.plain.get_size() / sizeof(float); }

  /// Both passes, over memory that held something else.
  void run(int threads = 1) {
    const testing::Threads limited(threads);
    std::memset(dst.buffer.data(), 0xFF, dst.buffer.size());
    std::memset(grad_src.buffer.data(), 0xFF, grad_src.buffer.size());
    std::fill(choices.begin(), choices.end(), std::uint8_t{0xFF});
    testing::run(forward());
    testing::run(backward());
  }
  engine::Task forward() {
    return plan_pool_forward("forward", pool, src.buffer.data(), dst.buffer.data(), choices.data());
  }
  engine::Task backward() {
    return plan_pool_backward("backward", pool, grad_dst.buffer.data(), choices.data(),
                              grad_src.buffer.data());
  }

  Dnnl dnnl;
  reference::PoolShape shape;
  lattice::Tensor src, grad_src;
  PlannedPool planned;
  Pool pool;
  lattice::Tensor dst, grad_dst;
  std::vector<std::uint8_t> choices;
};

/// Those that a block of the pooling fills.
std::vector<VectorSet> sets_for(const Pool& pool) {
  std::vector<VectorSet> sets;
  for (const VectorSet set : vector_sets_here()) {
    if (set == VectorSet::portable || lanes_of(set) <= pool.block) sets.push_back(set);
  }
  return sets;
}

class MaxPooling : public ::testing::TestWithParam<PoolCase> {};

TEST_P(MaxPooling, GivesTheReferencesValuesAndGradientsOfTheFirstMaximum) {
  for (const Precision precision : lattice::precisions_here()) {
    PoolFixture f(GetParam(), precision);
    const Array x = with_ties(f.inputs(), 1), grad_y = exact_gradients(f.outputs());
    const Array wanted = reference::pool_forward(f.shape, x);
    const Array wanted_grad = reference::pool_grad_x(f.shape, x, grad_y);
    f.src.set(f.dnnl, x);
    f.grad_dst.set(f.dnnl, grad_y);
    for (const VectorSet set : sets_for(f.pool)) {
      const std::string what = concat(to_string(precision), ", ", name_of(set));
      f.pool.set = set;
      f.run();
      lattice::expect_equal(f.dst.get(f.dnnl), wanted, what + ", forward");
      lattice::expect_equal(f.grad_src.get(f.dnnl), wanted_grad, what + ", backward");
      std::memset(f.dst.buffer.data(), 0xFF, f.dst.buffer.size());
      testing::run(plan_pool_forward("forward", f.pool, f.src.buffer.data(), f.dst.buffer.data(), nullptr));
      lattice::expect_equal(f.dst.get(f.dnnl), wanted, what + ", evaluation");
    }
  }
}

TEST_P(MaxPooling, HasTheSameBitsWithAnyVectorsAndThreads) {
  for (const Precision precision : lattice::precisions_here()) {
    PoolFixture f(GetParam(), precision);
    const std::vector<float> x = testing::noise_of(f.inputs(), 1), grad_y = testing::noise_of(f.outputs(), 2);
    f.src.set(f.dnnl, {x.begin(), x.end()});
    f.grad_dst.set(f.dnnl, {grad_y.begin(), grad_y.end()});
    f.run();
    const auto bits = [](const lattice::Tensor& tensor) {
      return std::string(reinterpret_cast<const char*>(tensor.buffer.data()), tensor.buffer.size());
    };
    const std::string dst = bits(f.dst), grad_src = bits(f.grad_src);
    for (const VectorSet set : sets_for(f.pool)) {
      f.pool.set = set;
      for (const int threads : {1, 2, 3}) {
        f.run(threads);
        const std::string what = concat(to_string(precision), ", ", name_of(set), ", ", threads, " threads");
        EXPECT_TRUE(bits(f.dst) == dst) << what;
        EXPECT_TRUE(bits(f.grad_src) == grad_src) << what;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, MaxPooling,
    ::testing::Values(PoolCase{2, {12, 12, 64}, 3, 2, Tag::nhwc},
                      PoolCase{2, {16, 16, 64}, 3, 2, Tag::nChw16c}, PoolCase{3, {7, 9, 65}, 3, 2, Tag::nhwc},
                      PoolCase{17, {7, 9, 3}, 2, 2, Tag::nhwc}, PoolCase{1, {7, 9, 4}, 3, 2, Tag::nchw},
                      PoolCase{2, {9, 7, 20}, 3, 2, Tag::nChw16c}, PoolCase{17, {5, 5, 16}, 3, 1, Tag::nhwc},
                      PoolCase{2, {7, 7, 16}, 2, 3, Tag::nhwc}, PoolCase{2, {6, 6, 16}, 5, 2, Tag::nhwc},
                      PoolCase{2, {1, 1, 8}, 3, 2, Tag::nhwc}, PoolCase{1, {11, 13, 1}, 5, 1, Tag::nhwc},
                      PoolCase{2, {8, 5, 24}, 5, 3, Tag::nChw8c}, PoolCase{17, {3, 4, 9}, 2, 1, Tag::nhwc},
                      PoolCase{1, {5, 6, 33}, 3, 3, Tag::nhwc}, PoolCase{2, {20, 17, 8}, 16, 1, Tag::nhwc},
                      PoolCase{2, {2, 3, 7}, 5, 2, Tag::nhwc}));

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// As in the reference: what is not a number is the maximum of a window that begins with it, and of no other.
TEST(MaxPool, TreatsWhatIsNotANumberAsTheReferenceDoes) {
  for (const Precision precision : lattice::precisions_here()) {
    PoolFixture f({2, {7, 9, 20}, 3, 2, Tag::nhwc}, precision);
    Array x = with_ties(f.inputs(), 1);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (random4(5, RandomPurpose::synthetic, i, 0)[0] % 3 == 0) x[i] = kPoolNaN;
    }
    const Array grad_y = exact_gradients(f.outputs());
    f.src.set(f.dnnl, x);
    f.grad_dst.set(f.dnnl, grad_y);
    const Array wanted = reference::pool_forward(f.shape, x);
    ASSERT_TRUE(std::any_of(wanted.begin(), wanted.end(), [](double v) { return std::isnan(v); }));
    for (const VectorSet set : sets_for(f.pool)) {
      f.pool.set = set;
      f.run();
      const Array found = f.dst.get(f.dnnl);
      EXPECT_TRUE(std::equal(found.begin(), found.end(), wanted.begin(), same)) << name_of(set);
      lattice::expect_equal(f.grad_src.get(f.dnnl), reference::pool_grad_x(f.shape, x, grad_y), name_of(set));
    }
  }
}

// What is not declared is overwritten while a task runs, so it would give other results.
TEST(MaxPool, DeclaresTheBytesItTouches) {
  PoolFixture f({2, {5, 7, 20}, 3, 2, Tag::nhwc}, Precision::fp32);
  const Array x = with_ties(f.inputs(), 1), grad_y = exact_gradients(f.outputs());
  f.src.set(f.dnnl, x);
  f.grad_dst.set(f.dnnl, grad_y);
  const auto all_of = [](const lattice::Tensor& tensor) {
    return engine::Bytes{tensor.buffer.data(), tensor.buffer.size()};
  };
  const std::vector<engine::Bytes> regions{all_of(f.src), all_of(f.dst), all_of(f.grad_dst),
                                           all_of(f.grad_src), testing::region(f.choices)};
  testing::run_audited(f.forward(), regions);
  testing::run_audited(f.backward(), regions);
  lattice::expect_equal(f.dst.get(f.dnnl), reference::pool_forward(f.shape, x), "forward");
  lattice::expect_equal(f.grad_src.get(f.dnnl), reference::pool_grad_x(f.shape, x, grad_y), "backward");
}

TEST(MaxPool, TakesTheWidestVectorsThatABlockFills) {
  for (const int block : {1, 3, 4, 7, 8, 15, 16, 64}) {
    const int lanes = lanes_of(pool_vectors(block));
    EXPECT_TRUE(lanes <= block || lanes == 4) << block;
    for (const VectorSet set : vector_sets_here())
      EXPECT_TRUE(lanes_of(set) > block || lanes_of(set) <= lanes);
  }
}

TEST(MaxPool, RefusesWindowsWhosePlacesDoNotFitAByte) {
  const Extent in{20, 20, 16};
  const Desc src = activations(2, in, Type::f32, Tag::nhwc);
  EXPECT_TRUE(plan_pool({"p", 16, 2}, 2, src, in).has_value());
  try {
    plan_pool({"p", 17, 2}, 2, src, in);
    FAIL() << "a window of 17 was planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("p has a window of 17"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
