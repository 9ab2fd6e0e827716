#include "cuda/lrn_pool.hpp"

#include <cmath>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "cuda/device/gpu.hpp"
#include "cuda/pool.hpp"

/// A pooling and a normalization in one kernel, bit for bit against the two in sequence, which are tested
/// against the reference.
namespace cifar_mpi::cuda::testing {
namespace {

struct LrnPoolCase {
  ValueType type = ValueType::fp32;
  Extent in;
  int kernel = 0;
  int stride = 0;
  LrnRule rule;
  bool relu = false;
  bool nan = false;  ///< here and there among the values
  const float* bias = nullptr;

  Activation activation() const { return {relu, bias}; }

  PoolPlace place() const {
    const model::Padding y = model::same_padding(in.height, kernel, stride),
                         x = model::same_padding(in.width, kernel, stride);
    return {3, in.height, in.width, y.outputs, x.outputs, in.channels, kernel, stride, y.before, x.before};
  }
  LrnPoolShape both() const { return {place(), rule, type, activation()}; }
  LrnShape lrn(std::size_t values) const {
    return {rule, static_cast<std::int64_t>(values) / in.channels, in.channels, type};
  }
  std::string text() const {
    return concat(name_of(type), ", ", to_string(in), ", ", kernel, '/', stride, relu ? ", relu" : "",
                  bias != nullptr ? ", bias" : "", nan ? ", NaN" : "");
  }
};

std::vector<LrnPoolCase> lrn_pool_cases(Bench& bench) {
  // biases that round to bf16 together with a value
  const reference::Array noise = noise_array(512, 9);
  const float* const bias = bench.upload(std::vector<float>(noise.begin(), noise.end()));
  std::vector<LrnPoolCase> all;
  for (const ValueType type : {ValueType::fp32, ValueType::bf16}) {
    // more pixels than a block takes, odd and even; one vec8 of channels, several, and as many as one block
    for (const Extent in : {Extent{12, 12, 64}, Extent{9, 7, 8}, Extent{5, 11, 32}, Extent{13, 4, 128},
                            Extent{2, 1, 16}, Extent{1, 1, 8}, Extent{3, 2, 512}}) {
      all.push_back({type, in, 3, 2, {4, 1.0f, 0.1f, 0.75f}, true});
      all.push_back({type, in, 3, 2, {4, 2.0f, 0.1f, 0.75f}, false});
      all.push_back({type, in, 3, 2, {4, 1.0f, 0.1f, 0.75f}, true, true});
      all.push_back({type, in, 3, 2, {4, 1.0f, 0.1f, 0.75f}, true, true, bias});
    }
  }
  return all;
}

/// Values for the input.
reference::Array input(const LrnPoolCase& c, std::size_t count, std::uint32_t salt) {
  reference::Array values = lattice(count, salt);
  for (std::size_t i = 5; c.nan && i < count; i += 37) values[i] = NAN;
  return values;
}

/// NaN as a number, so that it equals itself.
reference::Array marked(reference::Array values) {
  for (double& value : values) value = std::isnan(value) ? 1e30 : value;
  return values;
}

class CudaLrnPool : public GpuTest {};

TEST_F(CudaLrnPool, PoolsThenNormalizesAsTheTwoKernelsDo) {
  Bench bench;
  Bench biases;
  for (const LrnPoolCase& c : lrn_pool_cases(biases)) {
    SCOPED_TRACE(c.text());
    const PoolPlace place = c.place();
    ASSERT_TRUE(fits_lrn_pool(place, c.rule));
    const auto inputs = static_cast<std::size_t>(place.in_values()),
               outputs = static_cast<std::size_t>(place.out_values());
    const void* const x = bench.upload(input(c, inputs, 1), c.type);
    const void* const grad = bench.upload(noise_array(outputs, 2), c.type);
    void *const p1 = bench.take(outputs, c.type), *const p2 = bench.take(outputs, c.type);
    void *const y1 = bench.take(outputs, c.type), *const y2 = bench.take(outputs, c.type),
                *const y3 = bench.take(outputs, c.type);
    auto *const t1 = bench.take<std::uint8_t>(outputs), *const t2 = bench.take<std::uint8_t>(outputs);
    pool_forward(bench.stream, place, c.type, c.activation(), x, p1, t1);
    lrn_forward(bench.stream, c.lrn(outputs), {}, p1, y1);
    pool_lrn_forward(bench.stream, c.both(), x, p2, t2, y2);
    pool_lrn_forward(bench.stream, c.both(), x, nullptr, nullptr, y3);
    EXPECT_EQ(marked(bench.download(p2, outputs, c.type)), marked(bench.download(p1, outputs, c.type)));
    EXPECT_EQ(bench.download(t2, outputs), bench.download(t1, outputs));
    EXPECT_EQ(marked(bench.download(y2, outputs, c.type)), marked(bench.download(y1, outputs, c.type)));
    EXPECT_EQ(marked(bench.download(y3, outputs, c.type)), marked(bench.download(y1, outputs, c.type)));

    void *const g = bench.take(outputs, c.type), *const g1 = bench.take(inputs, c.type),
                *const g2 = bench.take(inputs, c.type);
    lrn_backward(bench.stream, c.lrn(outputs), {}, p1, grad, g);
    pool_backward(bench.stream, place, c.type, t1, g, g1);
    pool_lrn_backward(bench.stream, c.both(), p1, t1, grad, g2);
    EXPECT_EQ(marked(bench.download(g2, inputs, c.type)), marked(bench.download(g1, inputs, c.type)));
    bench.clear();
  }
}

TEST_F(CudaLrnPool, NormalizesThenPoolsAsTheTwoKernelsDo) {
  Bench bench;
  Bench biases;
  for (const LrnPoolCase& c : lrn_pool_cases(biases)) {
    SCOPED_TRACE(c.text());
    const PoolPlace place = c.place();
    const auto inputs = static_cast<std::size_t>(place.in_values()),
               outputs = static_cast<std::size_t>(place.out_values());
    const void* const x = bench.upload(input(c, inputs, 3), c.type);
    const void* const grad = bench.upload(noise_array(outputs, 4), c.type);
    void* const n = bench.take(inputs, c.type);
    void *const y1 = bench.take(outputs, c.type), *const y2 = bench.take(outputs, c.type),
                *const y3 = bench.take(outputs, c.type);
    auto *const t1 = bench.take<std::uint8_t>(outputs), *const t2 = bench.take<std::uint8_t>(outputs);
    lrn_forward(bench.stream, c.lrn(inputs), c.activation(), x, n);
    pool_forward(bench.stream, place, c.type, {}, n, y1, t1);
    lrn_pool_forward(bench.stream, c.both(), x, t2, y2);
    lrn_pool_forward(bench.stream, c.both(), x, nullptr, y3);
    EXPECT_EQ(bench.download(t2, outputs), bench.download(t1, outputs));
    EXPECT_EQ(marked(bench.download(y2, outputs, c.type)), marked(bench.download(y1, outputs, c.type)));
    EXPECT_EQ(marked(bench.download(y3, outputs, c.type)), marked(bench.download(y1, outputs, c.type)));

    void *const g = bench.take(inputs, c.type), *const g1 = bench.take(inputs, c.type),
                *const g2 = bench.take(inputs, c.type);
    pool_backward(bench.stream, place, c.type, t1, grad, g);
    lrn_backward(bench.stream, c.lrn(inputs), c.activation(), x, g, g1);
    lrn_pool_backward(bench.stream, c.both(), x, t1, grad, g2);
    EXPECT_EQ(marked(bench.download(g2, inputs, c.type)), marked(bench.download(g1, inputs, c.type)));
    bench.clear();
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
