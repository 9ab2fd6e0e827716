#include "cpu/linear.hpp"

#include <gtest/gtest.h>

#include "cifar_mpi/base/text.hpp"
#include "cpu/lattice.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Precision;
using reference::Array;
using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

struct LinearCase {
  int batch;
  Extent in;
  int outputs;
  bool relu;
  bool logits;  ///< fp32 output in every precision
};

void PrintTo(const LinearCase& c, std::ostream* out) {
  *out << c.batch << "x" << to_string(c.in) << " to " << c.outputs << (c.relu ? ", relu" : "")
       << (c.logits ? ", logits" : "");
}

struct LinearFixture {
  LinearFixture(const LinearCase& c, Precision asked)
      : precision(asked),
        dst_precision(c.logits ? Precision::fp32 : asked),
        shape{c.batch, c.in.count(), c.outputs} {
    const model::Linear layer{"linear", c.outputs};
    AffinePlace place;
    place.batch = c.batch;
    place.in = c.in;
    place.out = {1, 1, c.outputs};
    place.type = data_type_of(precision);
    place.dst_type = data_type_of(dst_precision);
    place.src = activations(c.batch, c.in, place.type, Tag::nhwc);
    place.relu = c.relu;
    place.wants_grad_src = true;
    affine = plan_linear(dnnl, layer, place);
    plain_src = matrix(c.batch, c.in.count(), Type::f32, Tag::ab);
    plain_dst = matrix(c.batch, c.outputs, Type::f32, Tag::ab);
    plain_weights = linear_logical_weights(layer, c.in);
    const auto values = [](const Desc& plain, std::uint32_t salt) {
      return lattice::values(plain.get_size() / sizeof(float), salt);
    };
    x = values(plain_src, 1);
    weights = values(plain_weights, 2);
    biases = values(affine.bias, 3);
    grad_y = values(plain_dst, 4);
  }

  lattice::Tensor tensor(const Desc& desc, const Desc& plain, const Array& values) const {
    lattice::Tensor made(desc, plain);
    made.set(dnnl, values);
    return made;
  }

  Dnnl dnnl;
  Precision precision;
  Precision dst_precision;
  reference::LinearShape shape;
  Affine affine;
  Desc plain_src, plain_dst, plain_weights;
  Array x, weights, biases, grad_y;
};

class LinearLayer : public ::testing::TestWithParam<LinearCase> {};

TEST_P(LinearLayer, GivesTheExactSumsOfTheReference) {
  for (const Precision precision : lattice::precisions_here()) {
    const LinearFixture s(GetParam(), precision);
    const lattice::Tensor src = s.tensor(s.affine.src, s.plain_src, s.x);
    const lattice::Tensor w = s.tensor(s.affine.forward_weights.desc, s.plain_weights, s.weights);
    const lattice::Tensor b = s.tensor(s.affine.bias, s.affine.bias, s.biases);
    const lattice::Tensor dst(s.affine.dst, s.plain_dst);
    lattice::run_kernel(
        s.dnnl, s.affine.kernels.forward,
        {reads(DNNL_ARG_SRC, src.desc, src.buffer.data()), reads(DNNL_ARG_WEIGHTS, w.desc, w.buffer.data()),
         reads(DNNL_ARG_BIAS, b.desc, b.buffer.data()), writes(DNNL_ARG_DST, dst.desc, dst.buffer.data())});
    Array wanted = reference::linear_forward(s.shape, s.x, s.weights, s.biases);
    if (s.affine.relu) wanted = reference::relu_forward(wanted);
    lattice::expect_equal(dst.get(s.dnnl), lattice::rounded(wanted, s.dst_precision),
                          concat(to_string(precision)));
  }
}

TEST_P(LinearLayer, GivesTheExactGradientsOfTheReference) {
  for (const Precision precision : lattice::precisions_here()) {
    const LinearFixture s(GetParam(), precision);
    const std::string text = concat(to_string(precision));
    const lattice::Tensor src = s.tensor(s.affine.src, s.plain_src, s.x);
    const lattice::Tensor grad_dst = s.tensor(s.affine.grad_dst, s.plain_dst, s.grad_y);
    const lattice::Tensor grad_weights(s.affine.master, s.plain_weights);
    const lattice::Tensor grad_biases(s.affine.bias, s.affine.bias);
    lattice::run_kernel(s.dnnl, s.affine.kernels.weight_gradient,
                        {reads(DNNL_ARG_SRC, src.desc, src.buffer.data()),
                         reads(DNNL_ARG_DIFF_DST, grad_dst.desc, grad_dst.buffer.data()),
                         writes(DNNL_ARG_DIFF_WEIGHTS, grad_weights.desc, grad_weights.buffer.data()),
                         writes(DNNL_ARG_DIFF_BIAS, grad_biases.desc, grad_biases.buffer.data())});
    lattice::expect_equal(grad_weights.get(s.dnnl), reference::linear_grad_weights(s.shape, s.x, s.grad_y),
                          "weights, " + text);
    lattice::expect_equal(grad_biases.get(s.dnnl), reference::grad_biases(s.shape.outputs, s.grad_y),
                          "biases, " + text);

    const lattice::Tensor w = s.tensor(s.affine.backward_weights.desc, s.plain_weights, s.weights);
    const lattice::Tensor grad_src(s.affine.src, s.plain_src);
    lattice::run_kernel(s.dnnl, s.affine.kernels.data_gradient,
                        {reads(DNNL_ARG_DIFF_DST, grad_dst.desc, grad_dst.buffer.data()),
                         reads(DNNL_ARG_WEIGHTS, w.desc, w.buffer.data()),
                         writes(DNNL_ARG_DIFF_SRC, grad_src.desc, grad_src.buffer.data())});
    const Array wanted = reference::linear_grad_x(s.shape, s.weights, s.grad_y);
    lattice::expect_equal(grad_src.get(s.dnnl), lattice::rounded(wanted, precision), "input, " + text);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LinearLayer,
                         ::testing::Values(LinearCase{5, {6, 6, 64}, 384, true, false},
                                           LinearCase{128, {1, 1, 192}, 10, false, true},
                                           LinearCase{3, {2, 3, 5}, 65, true, false},
                                           LinearCase{1, {1, 1, 17}, 7, false, true},
                                           LinearCase{33, {1, 1, 65}, 16, false, false},
                                           LinearCase{2, {7, 9, 3}, 10, false, true}));

}  // namespace
}  // namespace cifar_mpi::cpu
