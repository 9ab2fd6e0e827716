#include "cuda/device/gpu.hpp"
#include "support/layer_check.hpp"

/// All layers of the table on the GPU.
namespace cifar_mpi::cuda::testing {
namespace {

using engine::Precision;

class CudaLayers : public ::testing::TestWithParam<test::LayerGroup> {
 protected:
  void SetUp() override { skip_without_gpu(); }
};

TEST_P(CudaLayers, EqualTheReference) {
  test::LayerBackend backend(make_backend({}));
  for (const test::LayerCase& c : GetParam().cases) {
    for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16}) {
      const auto multiplies = [](const model::Layer& layer) {
        return std::holds_alternative<model::Conv2d>(layer) || std::holds_alternative<model::Linear>(layer);
      };
      if (precision == Precision::tf32 && std::none_of(c.layers.begin(), c.layers.end(), multiplies))
        continue;
      SCOPED_TRACE(concat(c.text(), ", ", to_string(precision)));
      expect_reference(backend, c, precision, true);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, CudaLayers, ::testing::ValuesIn(test::layer_table()),
                         [](const auto& group) { return std::string(group.param.name); });

}  // namespace
}  // namespace cifar_mpi::cuda::testing
