#include <algorithm>

#include "cifar_mpi/cpu/backend.hpp"
#include "cpu/dnnl.hpp"
#include "cpu/simd.hpp"
#include "support/layer_check.hpp"

/// All layers of the table on the CPU.
namespace cifar_mpi::cpu {
namespace {

using engine::Precision;
using test::LayerCase;
using test::SourceFormat;

constexpr SourceFormat kFormats[] = {SourceFormat::images, SourceFormat::of_1x1, SourceFormat::of_3x3};

class Layers : public ::testing::TestWithParam<test::LayerGroup> {};

TEST_P(Layers, EqualTheReference) {
  if (!has_bf16()) std::cout << "[  LOUD    ] this cpu has no bf16 arithmetic: bf16 is NOT tested here\n";
  test::LayerBackend backend(make_backend({}));
  for (const LayerCase& c : GetParam().cases) {
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      if (precision == Precision::bf16 && !has_bf16()) continue;
      for (const SourceFormat format : kFormats) {
        if (format == SourceFormat::of_3x3 && c.in.channels % 8 != 0) continue;  // no blocks
        SCOPED_TRACE(concat(c.text(), ", ", to_string(precision), ", format ", static_cast<int>(format)));
        backend.format = format;
        expect_reference(backend, c, precision, false);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Layers, ::testing::ValuesIn(test::layer_table()),
                         [](const auto& group) { return std::string(group.param.name); });

TEST(Layers, PoolTheLargestWindow) {
  test::LayerBackend backend(make_backend({}));
  const LayerCase c{2, {20, 17, 8}, {model::MaxPool{"p", 16, 1}}, {test::Values::steps}};
  expect_reference(backend, c, Precision::fp32, false);
}

TEST(Layers, PoolWithTheSameBitsForAnyVectorsAndThreads) {
  std::string before;
  for (LayerCase c : test::poolings()) {
    if (c.layers.size() > 1) continue;  // sums of a convolution depend on its vectors
    // most pooled shapes are there twice, with other values
    if (c.text() == std::exchange(before, c.text())) continue;
    c.terms.values = test::Values::noise;
    for (const SourceFormat format : kFormats) {
      std::vector<reference::Array> first;
      for (const VectorSet set : vector_sets_here()) {
        for (const int threads : {1, 2, 3}) {
          limit_vectors(set);
          test::LayerBackend backend(make_backend({threads, false}));
          backend.format = format;
          test::LayerRun run(backend, c, Precision::fp32);
          run.run(run.training());
          const std::vector<reference::Array> found{run.y(), run.grad_x()};
          if (first.empty()) first = found;
          EXPECT_EQ(found, first) << c.text() << ", " << name_of(set) << ", " << threads << " threads";
        }
      }
      limit_vectors(VectorSet::avx512);
    }
  }
}

/// All results of a training step and an evaluation of fp32.
std::vector<reference::Array> results_of(test::LayerBackend& backend, const LayerCase& c, bool with_silu) {
  test::LayerRun run(backend, c, Precision::fp32);
  engine::StepProgram program = run.training();
  EXPECT_EQ(std::ranges::any_of(program.tasks(),
                                [](const engine::Task& task) { return task.name.starts_with("silu"); }),
            with_silu)
      << c.text();
  run.run(std::move(program));
  std::vector<reference::Array> all = run.gradients();
  all.insert(all.end(), {run.y(), run.grad_x()});
  run.run(run.evaluate_program());
  all.push_back(run.y());
  return all;
}

// A factor of 1 changes no bit, and keeps the two layers in separate groups.
TEST(Layers, NormalizeWithASiluToTheBitsOfTwoGroups) {
  using model::Pointwise, model::PointwiseKind;
  const Pointwise silu, one{PointwiseKind::scale, 1.0f};
  for (const bool with_scale : {true, false}) {
    const model::BatchNorm norm{.name = "bn", .epsilon = 1e-3f, .with_scale = with_scale};
    for (const bool synced : {false, true}) {
      for (const Extent in : {Extent{5, 3, 7}, {6, 5, 16}, {9, 7, 24}, {3, 3, 64}}) {
        const test::Terms terms{.values = test::Values::noise, .middle = 0.3, .synced = synced};
        for (const SourceFormat format : kFormats) {
          for (const VectorSet set : vector_sets_here()) {
            limit_vectors(set);
            test::LayerBackend backend(make_backend({}));
            backend.format = format;
            EXPECT_EQ(results_of(backend, {7, in, {norm, silu}, terms}, false),
                      results_of(backend, {7, in, {norm, one, silu}, terms}, true))
                << to_string(in) << ", " << name_of(set) << ", format " << static_cast<int>(format)
                << (with_scale ? ", scale" : "") << (synced ? ", synced" : "");
          }
          limit_vectors(VectorSet::avx512);
        }
      }
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
