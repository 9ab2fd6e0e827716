#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cifar_mpi/model/net_spec.hpp"
#include "cifar_mpi/model/param_table.hpp"
#include "cifar_mpi/optim/step_math.hpp"

/// Every layer as naive loops in double precision, the reference for the tests of both backends.
///
/// Activations are dense NHWC, [batch, height, width, channels]; parameters have the logical shapes of the
/// ParamTable. The gradients here are checked by central differences. Sizes that do not fit are a bug of the
/// caller (assert).
namespace cifar_mpi::reference {

using Array = std::vector<double>;

/// Cross-correlation, padded with (kernel − 1)/2 zeros at the start, ceil(n/stride) outputs; if valid, without
/// padding and only with windows inside the image. Weights [kernel, kernel, in.channels, out_channels].
struct ConvShape {
  int batch = 0;
  Extent in;
  int out_channels = 0;
  int kernel = 0;
  int stride = 1;
  bool valid = false;
};

/// No biases: none are added.
Array conv_forward(const ConvShape& shape, const Array& x, const Array& weights, const Array& biases);
Array conv_grad_weights(const ConvShape& shape, const Array& x, const Array& grad_y);
Array conv_grad_x(const ConvShape& shape, const Array& weights, const Array& grad_y);

/// SAME padding; where valid, none, and only windows inside the image.
struct PoolShape {
  int batch = 0;
  Extent in;
  int kernel = 0;
  int stride = 0;
  bool valid = false;
};

Array pool_forward(const PoolShape& shape, const Array& x);
/// The gradient goes to the first maximum of the window in row-major order.
Array pool_grad_x(const PoolShape& shape, const Array& x, const Array& grad_y);

/// `x` and `grad_y` are [pixels, channels] for any number of pixels.
Array lrn_forward(const model::LocalResponseNorm& layer, int channels, const Array& x);
Array lrn_grad_x(const model::LocalResponseNorm& layer, int channels, const Array& x, const Array& grad_y);

/// `x` and `grad_y` are [values, channels] for any number of values.
struct Moments {
  Array mean, variance;  ///< [channels]; the variance is biased
};
Moments moments_of(int channels, const Array& x);
Array batch_norm_forward(const model::BatchNorm& layer, const Array& x, const Array& scale,
                         const Array& biases, const Moments& moments);
struct BatchNormGrads {
  Array x, scale, biases;
};
/// With the moments of `x`, through which the gradient goes too.
BatchNormGrads batch_norm_backward(const model::BatchNorm& layer, const Array& x, const Array& scale,
                                   const Array& grad_y);

Array global_avg_pool_forward(int batch, const Extent& in, const Array& x);
Array global_avg_pool_grad_x(int batch, const Extent& in, const Array& grad_y);

Array shortcut_forward(const model::Shortcut& layer, int batch, const Extent& in, const Array& x);
Array shortcut_grad_x(const model::Shortcut& layer, int batch, const Extent& in, const Array& grad_y);

Array relu_forward(const Array& x);
/// `y` is the output (or the input: only its sign counts); no gradient where it is not positive.
Array relu_grad_x(const Array& y, const Array& grad_y);

Array pointwise_forward(const model::Pointwise& layer, const Array& x);
Array pointwise_grad_x(const model::Pointwise& layer, const Array& x, const Array& grad_y);

/// x [batch, inputs], weights [inputs, outputs].
struct LinearShape {
  int batch = 0;
  int inputs = 0;
  int outputs = 0;
};

Array linear_forward(const LinearShape& shape, const Array& x, const Array& weights, const Array& biases);
Array linear_grad_weights(const LinearShape& shape, const Array& x, const Array& grad_y);
Array linear_grad_x(const LinearShape& shape, const Array& weights, const Array& grad_y);

/// Sums `grad_y` [rows, channels] over the rows; the bias gradient of a convolution and of a linear layer.
Array grad_biases(int channels, const Array& grad_y);

struct Loss {
  double sum = 0.0;      ///< cross-entropy summed over the samples that count, not divided
  double correct = 0.0;  ///< samples whose largest logit (the first of equals) is the label's
  double samples = 0.0;  ///< samples whose label is not 255
  Array probabilities;   ///< [batch, classes]
  Array grad_logits;     ///< (probability − label) / global_batch; zero where the label is 255
};

/// Logits [batch, classes]; the batch is that of `labels`. Labels of 255 are left out. `smoothing` of each target
/// is spread evenly over all classes.
Loss softmax_cross_entropy(int classes, const Array& logits, std::span<const std::uint8_t> labels,
                           double global_batch, double smoothing = 0.0);

/// One array per entry of the ParamTable, in its order.
using Params = std::vector<Array>;

/// The float values of `fill_initial`, widened.
Params initial_params(const model::ParamTable& table, std::uint64_t seed);

/// The rounding of each value, gradient and weight; none by default. With a shorter type, the logits of a
/// linear layer, sums and parameter gradients are not rounded.
using Rounding = std::function<Array(Array)>;
inline Array as_it_is(Array values) { return values; }

/// The mean and variance that BatchNorm uses: the batch's in training, the running ones in evaluation.
enum class Statistics : std::uint8_t { of_batch, running };

/// Whether the output of a BatchNorm is rounded before an addition or a SiLU, or only the result of both layers is.
enum class Normalized : std::uint8_t { rounded, exact };

/// activations[i] is the output of operation i. The last one, of SoftmaxCrossEntropy, is the probabilities.
/// `params` are already rounded.
std::vector<Array> forward(const model::NetSpec& net, const Params& params, const Array& x, int batch,
                           const Rounding& round = as_it_is, Statistics statistics = Statistics::of_batch,
                           Normalized normalized = Normalized::rounded);

struct LossAndGradients {
  double loss_sum = 0.0;  ///< as in Loss; no weight decay
  double correct = 0.0;
  double samples = 0.0;
  /// Gradients of loss_sum / global_batch, without weight decay; none for frozen parameters; for running
  /// statistics, the batch's.
  Params grads;
  std::vector<Array> activations;  ///< the result of `forward`
};

LossAndGradients loss_and_gradients(const model::NetSpec& net, const model::ParamTable& table,
                                    const Params& params, const Array& x,
                                    std::span<const std::uint8_t> labels, int batch, double global_batch,
                                    const Rounding& round = as_it_is);

/// The backward pass alone, from `grad` of value `from`, which may lie before the loss. Returns the parameter
/// gradients as in LossAndGradients, and the gradients by Value::id; empty for values it does not reach.
/// `params` are already rounded, `activations` are the result of `forward`.
struct Gradients {
  Params params;
  std::vector<Array> values;
};
Gradients backward(const model::NetSpec& net, const model::ParamTable& table, const Params& params,
                   const Array& x, const std::vector<Array>& activations, model::Value from, Array grad,
                   int batch, const Rounding& round = as_it_is);

/// The error of gradient or statistic `p` of a trained parameter, relative to its length. The gradient of a
/// layer's biases sums the same terms as that of its weights; where these nearly cancel, their rounding
/// remains, so the length is at least that of the weights' gradient. The same holds for scales and biases of
/// a BatchNorm. The length of means is at least that of the corresponding deviations.
double gradient_distance(const model::ParamTable& table, const Array& found, const Params& wanted,
                         std::size_t p);

/// A gradient has passed every layer forward and backward; errors of random sign add up as the square root of their number.
double layers_passed(const model::NetSpec& net);

/// The rounding error of a network, relative to the size of a gradient: about eps·sqrt(k) per layer, where k
/// is the number of terms of the longest sum of all layers, times layers_passed.
double relative_tolerance(const model::NetSpec& net, double eps);

/// The length of the difference, relative to that of `wanted`; infinite where sizes differ.
double relative_distance(const Array& found, const Array& wanted);

// Optimizers without state: sums over all past gradients, in double.

/// The values of one weight: before the first step, and after each. One gradient and one rate for each step.
///
/// Momentum is Σ_i m^(t − i)·g_i with g_i = gradient + decay · w_i; adamw's moments are Σ_i (1 − β)·β^(t − i)·g_i
/// (g_i² in the second), divided by 1 − β^(t + 1). Only the weight is carried from step to step.
std::vector<double> trajectory(const optim::OptimizerSpec& optimizer, double weight, double decay,
                               std::span<const double> gradients, std::span<const double> rates);

/// Σ_i factor · ratio^(t − i)·values_i over the values so far, the last one being of step t.
double faded_sum(double factor, double ratio, std::span<const double> values);

/// The move of a matrix with muon, before the rate: `direction` [rest, out], the Nesterov direction, as one with `out` rows.
std::vector<double> muon_move(std::span<const double> direction, std::size_t rest, std::size_t out);

}  // namespace cifar_mpi::reference
