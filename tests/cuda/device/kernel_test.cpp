#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <string>

#include "cifar_mpi/base/text.hpp"
#include "cuda/augment.hpp"
#include "cuda/conv.hpp"
#include "cuda/device/gpu.hpp"
#include "cuda/kernels.hpp"
#include "cuda/loss.hpp"
#include "cuda/lrn_pool.hpp"
#include "cuda/plain_matmul.hpp"
#include "cuda/pool.hpp"
#include "cuda/relu.hpp"
#include "cuda/sum.hpp"
#include "support/errors.hpp"

/// Single kernels against the double-precision reference, on sizes that no tile divides.
namespace cifar_mpi::cuda::testing {
namespace {

class CudaKernel : public GpuTest {};

reference::Array transposed(const reference::Array& matrix, std::size_t rows, std::size_t columns) {
  reference::Array result(matrix.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) result[c * rows + r] = matrix[r * columns + c];
  }
  return result;
}

/// d = op(a) · op(b) + bias, done by `run`, against exact sums.
template <class Run>
void expect_product(Bench& bench, const MatmulShape& shape, Run run) {
  const auto m = static_cast<std::size_t>(shape.m), n = static_cast<std::size_t>(shape.n),
             k = static_cast<std::size_t>(shape.k);
  const reference::Array a = lattice(m * k, 1), b = lattice(k * n, 2);
  const bool biased = shape.epilogue != Epilogue::none;
  const reference::Array bias = biased ? lattice(n, 3) : reference::Array(n, 0.0);
  reference::Array wanted =
      reference::linear_forward({static_cast<int>(m), static_cast<int>(k), static_cast<int>(n)}, a, b, bias);
  if (shape.epilogue == Epilogue::bias_relu) wanted = reference::relu_forward(wanted);
  void* const d = bench.take(m * n, shape.out);
  run(bench.upload(shape.transpose_a ? transposed(a, m, k) : a, shape.in),
      bench.upload(shape.transpose_b ? transposed(b, k, n) : b, shape.in), d, bench.upload(bias, shape.out));
  expect_equal(
      bench.download(d, m * n, shape.out), rounded(wanted, shape.out),
      concat(shape.m, 'x', shape.n, 'x', shape.k, " transposed ", shape.transpose_a, shape.transpose_b));
}

std::vector<MatmulShape> products() {
  std::vector<MatmulShape> shapes;
  const std::int64_t sizes[][3] = {{128, 384, 2304}, {128, 10, 192}, {5, 7, 33},
                                   {77, 64, 80},     {80, 64, 1000}, {1, 1, 1}};
  for (const auto& size : sizes) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const Epilogue epilogue : {Epilogue::none, Epilogue::bias, Epilogue::bias_relu}) {
          const bool large = size[2] == 2304;  // once is enough
          if (large && epilogue != Epilogue::bias_relu) continue;
          shapes.push_back(
              {size[0], size[1], size[2], ta, tb, ValueType::fp32, ValueType::fp32, false, epilogue});
          shapes.push_back(
              {size[0], size[1], size[2], ta, tb, ValueType::fp32, ValueType::fp32, true, epilogue});
          shapes.push_back(
              {size[0], size[1], size[2], ta, tb, ValueType::bf16, ValueType::bf16, false, epilogue});
          shapes.push_back(
              {size[0], size[1], size[2], ta, tb, ValueType::bf16, ValueType::fp32, false, epilogue});
        }
      }
    }
  }
  for (const ValueType in : kTypes) {
    for (const std::int64_t columns : {64, 10}) {  // of bf16 the latter is left to the plain kernel
      MatmulShape sliced{80, columns, 96, true, false, in, ValueType::fp32};
      sliced.slices = 4;
      shapes.push_back(sliced);
    }
  }
  return shapes;
}

TEST_F(CudaKernel, MultipliesByThePlainKernel) {
  Bench bench;
  for (MatmulShape shape : products()) {
    shape.slices = 1;  // Matmul adds them
    expect_product(bench, shape, [&](const void* a, const void* b, void* d, const void* bias) {
      plain_matmul(bench.stream, shape, a, b, d, bias);
    });
    bench.clear();
  }
}

TEST_F(CudaKernel, MultipliesByCublas) {
  Bench bench;
  int plain = 0;
  std::size_t most = 0;
  for (const MatmulShape& shape : products()) {
    const Matmul product(shape);
    most = std::max({most, product.bytes_a(), product.bytes_b(), product.bytes_d()});
  }
  const TrialMemory memory(bench.device, most);
  for (const MatmulShape& shape : products()) {
    Matmul product(shape);
    product.plan(memory.trial());
    const bool left = product.text().find("plain") != std::string::npos;
    EXPECT_FALSE(left && (shape.n == 384 || (shape.slices > 1 && shape.n == 64))) << product.text();
    plain += left ? 1 : 0;
    void* const workspace = bench.take<std::byte>(product.workspace_bytes() + 1);
    expect_product(bench, shape, [&](const void* a, const void* b, void* d, const void* bias) {
      product.run(bench.stream, a, b, d, bias, workspace);
    });
    bench.clear();
  }
  std::cout << "products that cuBLASLt left to the plain kernel: " << plain << '\n';
}

TEST_F(CudaKernel, SaysThatNoMemoryIsLeftForTheSlicesOfAProduct) {
  Bench bench;
  Matmul product({80, 64, 96 * 8, true, false, ValueType::bf16, ValueType::fp32, false, Epilogue::none, 4});
  const TrialMemory memory(bench.device, std::max({product.bytes_a(), product.bytes_b(), product.bytes_d()}));
  Trial trial = memory.trial();
  trial.workspace = [](std::size_t) { return nullptr; };
  expect_error(ErrorKind::device, {"no GPU memory is left for "}, [&] { product.plan(trial); });
}

TEST_F(CudaKernel, KeepsNanAfterTheEpilogueSoThatDivergenceIsSeen) {
  Bench bench;
  constexpr std::size_t kM = 128, kN = 384, kK = 2304;
  for (const ValueType type : kTypes) {
    Matmul product({kM, kN, kK, false, false, type, type, false, Epilogue::bias_relu});
    const TrialMemory memory(bench.device,
                             std::max({product.bytes_a(), product.bytes_b(), product.bytes_d()}));
    product.plan(memory.trial());
    void* const d = bench.take(kM * kN, type);
    const reference::Array nan(kM * kK, std::numeric_limits<double>::quiet_NaN());
    product.run(bench.stream, bench.upload(nan, type), bench.upload(lattice(kN * kK, 2), type), d,
                bench.upload(lattice(kN, 3), type), bench.take<std::byte>(product.workspace_bytes() + 1));
    for (const double value : bench.download(d, kM * kN, type))
      ASSERT_TRUE(std::isnan(value)) << product.text();
  }
}

TEST_F(CudaKernel, SumsColumnsExactlyAndMasksOnTheWay) {
  Bench bench;
  for (const ValueType type : kTypes) {
    for (const auto& [rows, columns] :
         {std::pair{5, 7}, std::pair{128, 384}, std::pair{2000, 64}, std::pair{700, 33}, std::pair{1100, 72},
          std::pair{257, 129}, std::pair{131200, 8}}) {
      const auto count = static_cast<std::size_t>(rows * columns);
      const reference::Array grad = lattice(count, 41), y = lattice(count, 42);
      for (const bool masks : {false, true}) {
        ColumnSum work;
        work.type = type;
        work.rows = rows;
        work.columns = columns;
        work.y = masks ? bench.upload(y, type) : nullptr;
        work.sums = bench.take<float>(static_cast<std::size_t>(columns));
        work.partials = bench.take<float>(static_cast<std::size_t>(column_chunks(rows).chunks * columns));
        work.counters = bench.counters(static_cast<std::size_t>(column_counters(columns)));
        const reference::Array wanted = masks ? reference::relu_grad_x(y, grad) : grad;
        for (int round = 0; round < 2; ++round) {  // the counters must be as they were
          work.grad = bench.upload(grad, type);
          sum_columns(bench.stream, work);
          expect_equal(bench.download(work.sums, static_cast<std::size_t>(columns), ValueType::fp32),
                       reference::grad_biases(columns, wanted), concat(rows, 'x', columns));
          expect_equal(bench.download(work.grad, count, type), wanted, "masked gradient");
        }
      }
    }
  }
}

TEST_F(CudaKernel, RectifiesAndShifts) {
  Bench bench;
  for (const auto& [rows, columns] : {std::pair{13, 37}, std::pair{100, 72}, std::pair{301, 8},
                                      std::pair{2, 300}, std::pair{3, 2400}, std::pair{1, 3}}) {
    const auto n = static_cast<std::size_t>(columns), count = static_cast<std::size_t>(rows) * n;
    for (const ValueType type : kTypes) {
      const std::string what = concat(rows, 'x', columns);
      const reference::Array x = lattice(count, 51), bias = lattice(n, 52), grad = lattice(count, 53);
      void* const y = bench.take(count, type);
      relu_forward(bench.stream, type, bench.upload(x, type), y, static_cast<std::int64_t>(count));
      expect_equal(bench.download(y, count, type), reference::relu_forward(x), "relu " + what);
      void* const masked = bench.upload(grad, type);
      relu_mask(bench.stream, type, y, masked, masked, static_cast<std::int64_t>(count));
      expect_equal(bench.download(masked, count, type), reference::relu_grad_x(x, grad), "mask " + what);
      for (const bool relu : {false, true}) {
        reference::Array wanted = x;
        for (std::size_t i = 0; i < count; ++i) wanted[i] += bias[i % n];
        if (relu) wanted = reference::relu_forward(wanted);
        void* const shifted = bench.upload(x, type);
        add_bias(bench.stream, type, shifted, static_cast<const float*>(bench.upload(bias, ValueType::fp32)),
                 rows, columns, relu);
        expect_equal(bench.download(shifted, count, type), rounded(wanted, type), "bias " + what);
      }
    }
  }
}

/// A NaN that a ReLU turns into zero would hide that a run has diverged.
TEST_F(CudaKernel, KeepsNanThroughRectifiers) {
  Bench bench;
  const reference::Array nan(300, std::numeric_limits<double>::quiet_NaN());
  const auto expect_nan = [&](const void* found, std::size_t count, ValueType type, const char* what) {
    for (const double value : bench.download(found, count, type)) ASSERT_TRUE(std::isnan(value)) << what;
  };
  for (const ValueType type : kTypes) {
    void* const y = bench.upload(reference::Array(300, 1.0), type);
    relu_forward(bench.stream, type, bench.upload(nan, type), y, 300);
    expect_nan(y, 300, type, "relu");
    void* const shifted = bench.upload(nan, type);
    add_bias(bench.stream, type, shifted, bench.upload(std::vector<float>(30, 1.0f)), 10, 30, true);
    expect_nan(shifted, 300, type, "bias");
    void* const vec8s = bench.upload(nan, type);
    add_bias(bench.stream, type, vec8s, bench.upload(std::vector<float>(24, 1.0f)), 12, 24, true);
    expect_nan(vec8s, 12 * 24, type, "bias of vec8s");
    // the input is NaN, or the biases are
    const PoolPlace place{1, 3, 3, 2, 2, 16, 3, 2, 0, 0};
    const LrnRule rule{4, 1.0f, 0.1f, 0.75f};
    const float* const nans = bench.upload(std::vector<float>(16, NAN));
    const float* const ones = bench.upload(std::vector<float>(16, 1.0f));
    for (const bool input : {true, false}) {
      const Activation activation{true, input ? ones : nans};
      const void* const x = bench.upload(input ? nan : lattice(300, 4), type);
      void* const out = bench.upload(reference::Array(9 * 16, 1.0), type);
      pool_forward(bench.stream, place, type, activation, x, out, nullptr);
      expect_nan(out, 4 * 16, type, "pooling");
      lrn_forward(bench.stream, {rule, 9, 16, type}, activation, x, out);
      expect_nan(out, 9 * 16, type, "normalization");
      pool_lrn_forward(bench.stream, {place, rule, type, activation}, x, nullptr, nullptr, out);
      expect_nan(out, 4 * 16, type, "pooling and normalization");
      lrn_pool_forward(bench.stream, {place, rule, type, activation}, x, nullptr, out);
      expect_nan(out, 4 * 16, type, "normalization and pooling");
    }
    void* const d = bench.upload(reference::Array(100, 1.0), type);
    plain_matmul(bench.stream, {10, 10, 30, false, false, type, type, false, Epilogue::bias_relu},
                 bench.upload(nan, type), bench.upload(lattice(300, 1), type), d,
                 bench.upload(lattice(10, 2), type));
    expect_nan(d, 100, type, "plain product");
  }
}

/// Rows of `columns` values, the last of them `filler`.
reference::Array padded(const reference::Array& values, int width, int columns, double filler) {
  reference::Array result;
  for (std::size_t i = 0; i < values.size(); ++i) {
    result.push_back(values[i]);
    if ((i + 1) % static_cast<std::size_t>(width) == 0)
      result.insert(result.end(), static_cast<std::size_t>(columns - width), filler);
  }
  return result;
}

TEST_F(CudaKernel, FindsTheLossOfTheReference) {
  Bench bench;
  // batches of one block, of several, and of more than a block has threads
  for (const auto& [batch, classes] : {std::pair{3, 10}, std::pair{16600, 10}, std::pair{130, 255}}) {
    const int columns = round_up(classes, kIm2colGroup);
    const auto count = static_cast<std::size_t>(batch * columns);
    const reference::Array logits = noise_array(static_cast<std::size_t>(batch * classes), 61, 8.0f);
    std::vector<std::uint8_t> labels;
    for (int i = 0; i < batch; ++i) {
      const std::uint32_t bits = random4(62, RandomPurpose::synthetic, static_cast<std::uint64_t>(i), 0)[0];
      const auto label = static_cast<std::uint8_t>(uniform_below(bits, static_cast<std::uint32_t>(classes)));
      labels.push_back(i % 7 == 3 ? kPaddingLabel : label);
    }
    auto wanted = reference::softmax_cross_entropy(classes, logits, labels, 4000.0);
    wanted.grad_logits = padded(wanted.grad_logits, classes, columns, 0.0);
    const LossInput input{batch,
                          classes,
                          columns,
                          ValueType::fp32,
                          bench.upload(padded(logits, classes, columns, 100.0), ValueType::fp32),
                          bench.upload(labels),
                          bench.take<float>(loss_partials(batch)),
                          bench.counters(1)};
    float* const sums = bench.upload(std::vector<float>{0.0f, 0.0f, 0.0f});
    float* const added = bench.upload(std::vector<float>{50.0f, 100.0f, 200.0f});
    auto* const grad = bench.take<float>(count);
    auto* const predictions = bench.take<std::uint8_t>(static_cast<std::size_t>(batch));
    auto* const loss_sum = bench.take<float>(1);
    auto* const kept = bench.take<float>(logits.size());
    train_loss(bench.stream, input, {1.0 / 4000.0}, ValueType::fp32, grad, sums);
    evaluate_loss(bench.stream, input, predictions, loss_sum, kept);
    EXPECT_EQ(bench.download(kept, logits.size()), std::vector<float>(logits.begin(), logits.end()));
    const std::vector<float> found = bench.download(sums, 3);
    // loss_math.hpp and loss.hpp, of logits up to 16 from each other
    const double tolerance = (16.0 + std::sqrt(classes) + 7.0 + 14.0 + batch / 128.0 / 128.0) * 0x1.0p-24;
    EXPECT_NEAR(static_cast<double>(found[0]), wanted.sum, tolerance * wanted.sum);
    EXPECT_EQ(static_cast<double>(found[1]), wanted.correct);
    EXPECT_EQ(static_cast<double>(found[2]), wanted.samples);
    train_loss(bench.stream, input, {1.0 / 4000.0}, ValueType::fp32, grad, added);
    EXPECT_EQ(bench.download(added, 3),
              (std::vector<float>{found[0] + 50.0f, found[1] + 100.0f, found[2] + 200.0f}));
    EXPECT_EQ(bench.download(loss_sum, 1)[0], found[0]);
    auto smooth = reference::softmax_cross_entropy(classes, logits, labels, 4000.0, 0.25);
    smooth.grad_logits = padded(smooth.grad_logits, classes, columns, 0.0);
    float* const smooth_sums = bench.upload(std::vector<float>{0.0f, 0.0f, 0.0f});
    auto* const smooth_grad = bench.take<float>(count);
    train_loss(bench.stream, input, {1.0 / 4000.0, 0.25}, ValueType::fp32, smooth_grad, smooth_sums);
    EXPECT_NEAR(static_cast<double>(bench.download(smooth_sums, 3)[0]), smooth.sum, tolerance * smooth.sum);
    EXPECT_LE(relative_distance(bench.download(smooth_grad, count, ValueType::fp32), smooth.grad_logits),
              tolerance);
    EXPECT_LE(relative_distance(bench.download(grad, count, ValueType::fp32), wanted.grad_logits), tolerance);
    double correct = 0.0;
    const auto predicted = bench.download(predictions, static_cast<std::size_t>(batch));
    for (std::size_t i = 0; i < labels.size(); ++i) correct += predicted[i] == labels[i] ? 1.0 : 0.0;
    EXPECT_EQ(correct, wanted.correct);
  }
}

TEST_F(CudaKernel, AddsRanksInTheTree) {
  Bench bench;
  for (const int ranks : {1, 2, 3, 4, 7, 8, 16, 32, 64, 100}) {
    constexpr std::size_t kCount = 1000;
    const reference::Array all = noise_array(kCount * static_cast<std::size_t>(ranks), 71);
    auto* const sums = bench.take<float>(kCount);
    add_ranks(bench.stream, sums, static_cast<const float*>(bench.upload(all, ValueType::fp32)), kCount,
              ranks);
    reference::Array wanted(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      wanted[i] = static_cast<double>(tree_sum(
          ranks, [&](int r) { return static_cast<float>(all[static_cast<std::size_t>(r) * kCount + i]); }));
    }
    expect_equal(bench.download(sums, kCount, ValueType::fp32), wanted, concat(ranks, " ranks"));
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
