#include "cpu/conv.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "cifar_mpi/base/text.hpp"
#include "cpu/lattice.hpp"
#include "cpu/task_runs.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Precision;
using reference::Array;
using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

struct ConvCase {
  int batch;
  Extent in;
  int out_channels;
  int kernel;
  bool first;  ///< reads NCHW, chooses its output, has no data gradient
  bool relu;
  int pieces = 1;
};

void PrintTo(const ConvCase& c, std::ostream* out) {
  *out << c.batch << "x" << to_string(c.in) << " to " << c.out_channels << ", kernel " << c.kernel
       << (c.first ? ", first" : "") << (c.relu ? ", relu" : "") << ", " << c.pieces << " pieces";
}

/// One convolution with operands for which every sum is exact.
struct Fixture {
  Fixture(const ConvCase& c, Precision asked)
      : precision(asked), shape{c.batch, c.in, c.out_channels, c.kernel}, relu(c.relu), first(c.first) {
    const Extent out{c.in.height, c.in.width, c.out_channels};
    const Type type = data_type_of(precision);
    const model::Conv2d layer{"conv", c.out_channels, c.kernel};
    AffinePlace place;
    place.batch = c.batch / c.pieces;
    place.src = activations(place.batch, c.in, type, c.first ? Tag::nchw : Tag::nhwc);
    place.in = c.in;
    place.out = out;
    place.choose_dst = c.first;
    place.type = place.dst_type = type;
    place.relu = c.relu;
    place.wants_grad_src = !c.first;
    affine = plan_conv(dnnl, layer, place);
    affine.pieces = c.pieces;
    whole_src = c.pieces == 1 ? affine.src : activations(c.batch, c.in, type, Tag::nhwc);
    whole_dst = c.pieces == 1 ? affine.dst : activations(c.batch, out, type, Tag::nhwc);
    whole_grad_dst = c.pieces == 1 ? affine.grad_dst : whole_dst;
    plain_src = activations(c.batch, c.in, Type::f32, Tag::nhwc);
    plain_dst = activations(c.batch, out, Type::f32, Tag::nhwc);
    plain_weights = conv_logical_weights(layer, c.in);
    const auto count = [](const Desc& desc) { return desc.get_size() / sizeof(float); };
    x = lattice::values(count(plain_src), 1);
    weights = lattice::values(count(plain_weights), 2);
    biases = lattice::values(static_cast<std::size_t>(c.out_channels), 3);
    grad_y = lattice::values(count(plain_dst), 4);
  }

  lattice::Tensor tensor(const Desc& desc, const Desc& plain, const Array& values) const {
    lattice::Tensor made(desc, plain);
    made.set(dnnl, values);
    return made;
  }
  lattice::Tensor src() const { return tensor(whole_src, plain_src, x); }
  lattice::Tensor grad_dst() const { return tensor(whole_grad_dst, plain_dst, grad_y); }

  /// As a program does it, from the master copy.
  Buffer prepare(const WeightCopy& copy, const lattice::Tensor& master) const {
    Buffer copied = allocate_host(copy.desc.get_size());
    if (!copy.reorder) std::memcpy(copied.data(), master.buffer.data(), copied.size());
    const Buffer taps = allocate_host(copy.rotation ? copy.rotation->taps.get_size() : 0);
    const Buffer scratch = allocate_host(copy.reorder ? copy.reorder->scratch_bytes() : 0);
    engine::Lane lane;
    for (const engine::Task& task :
         prepare_tasks("prepare", dnnl, master.desc, copy, master.buffer.as<float>(), taps.data(),
                       copied.data(), scratch.data())) {
      task.start(lane);
    }
    return copied;
  }

  Buffer scratch() const {
    std::size_t bytes = 0;
    for (const Kernel* kernel :
         {&affine.kernels.forward, &affine.kernels.weight_gradient, &affine.kernels.data_gradient}) {
      if (kernel->primitive) bytes = std::max(bytes, kernel->scratch_bytes());
    }
    return allocate_host(bytes);
  }

  Array forward() const {
    const lattice::Tensor source = src();
    const lattice::Tensor w = tensor(affine.forward_weights.desc, plain_weights, weights);
    const lattice::Tensor b = tensor(affine.bias, affine.bias, biases);
    const lattice::Tensor dst(whole_dst, plain_dst);
    const Buffer room = scratch();
    AffineMemory memory;
    memory.src = source.buffer.data();
    memory.dst = dst.buffer.data();
    memory.scratch = room.data();
    testing::run(
        plan_affine_forward("forward", dnnl, affine, memory, w.buffer.data(), b.buffer.as<const float>()));
    return dst.get(dnnl);
  }

  Dnnl dnnl;
  Precision precision;
  reference::ConvShape shape;
  bool relu;
  bool first;
  Affine affine;
  Desc whole_src, whole_dst, whole_grad_dst;
  Desc plain_src, plain_dst, plain_weights;
  Array x, weights, biases, grad_y;
};

class Convolution : public ::testing::TestWithParam<ConvCase> {};

TEST_P(Convolution, GivesTheExactSumsOfTheReference) {
  for (const Precision precision : lattice::precisions_here()) {
    const Fixture setup(GetParam(), precision);
    Array wanted = reference::conv_forward(setup.shape, setup.x, setup.weights, setup.biases);
    if (setup.relu) wanted = reference::relu_forward(wanted);
    lattice::expect_equal(setup.forward(), lattice::rounded(wanted, precision), concat(to_string(precision)));
  }
}

TEST_P(Convolution, GivesTheExactGradientsOfWeightsAndBiases) {
  for (const Precision precision : lattice::precisions_here()) {
    const Fixture setup(GetParam(), precision);
    const lattice::Tensor src = setup.src();
    const lattice::Tensor grad_dst = setup.grad_dst();
    const lattice::Tensor grad_weights(setup.affine.master, setup.plain_weights);
    const lattice::Tensor grad_biases(setup.affine.bias, setup.affine.bias);
    const Buffer partial = allocate_host(setup.affine.partial_bytes()), room = setup.scratch();
    AffineMemory memory;
    memory.src = src.buffer.data();
    memory.grad_dst = grad_dst.buffer.data();
    memory.partial = partial.data();
    memory.scratch = room.data();
    testing::run(plan_weight_gradient("weights", setup.dnnl, setup.affine, memory,
                                      grad_weights.buffer.as<float>(), grad_biases.buffer.as<float>()));
    lattice::expect_equal(grad_weights.get(setup.dnnl),
                          reference::conv_grad_weights(setup.shape, setup.x, setup.grad_y),
                          concat("weights, ", to_string(precision)));
    lattice::expect_equal(grad_biases.get(setup.dnnl),
                          reference::grad_biases(setup.shape.out_channels, setup.grad_y),
                          concat("biases, ", to_string(precision)));
  }
}

TEST_P(Convolution, GivesTheExactGradientOfItsInputUnlessItIsTheFirst) {
  if (GetParam().first) {
    EXPECT_FALSE(Fixture(GetParam(), Precision::fp32).affine.kernels.data_gradient.primitive);
    return;
  }
  for (const Precision precision : lattice::precisions_here()) {
    const Fixture setup(GetParam(), precision);
    const lattice::Tensor grad_dst = setup.grad_dst();
    const Affine& affine = setup.affine;
    const lattice::Tensor master = setup.tensor(affine.master, setup.plain_weights, setup.weights);
    const lattice::Tensor grad_src(setup.whole_src, setup.plain_src);
    const Buffer weights = setup.prepare(affine.backward_weights, master);
    const Buffer room = setup.scratch();
    AffineMemory memory;
    memory.grad_dst = grad_dst.buffer.data();
    memory.grad_src = grad_src.buffer.data();
    memory.scratch = room.data();
    testing::run(plan_data_gradient("data", setup.dnnl, affine, memory, weights.data()));
    const Array wanted = reference::conv_grad_x(setup.shape, setup.weights, setup.grad_y);
    lattice::expect_equal(grad_src.get(setup.dnnl), lattice::rounded(wanted, precision),
                          concat(to_string(precision)));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Convolution,
                         ::testing::Values(ConvCase{2, {24, 24, 3}, 64, 5, true, true},
                                           ConvCase{2, {12, 12, 64}, 64, 5, false, true},
                                           ConvCase{1, {7, 9, 1}, 16, 3, true, false},
                                           ConvCase{3, {7, 9, 4}, 65, 5, true, true},
                                           ConvCase{2, {7, 9, 65}, 17, 3, false, false},
                                           ConvCase{2, {6, 5, 16}, 64, 4, false, true},
                                           ConvCase{5, {5, 5, 20}, 10, 2, false, false},
                                           ConvCase{2, {3, 2, 8}, 8, 5, false, true},
                                           ConvCase{4, {1, 1, 33}, 7, 1, false, false},
                                           ConvCase{6, {12, 12, 64}, 64, 5, false, true, 3},
                                           ConvCase{6, {7, 9, 65}, 17, 3, false, false, 2}));

}  // namespace
}  // namespace cifar_mpi::cpu
