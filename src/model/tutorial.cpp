#include "cifar_mpi/model/net_builder.hpp"

namespace cifar_mpi::model {

/// The network of the TensorFlow CIFAR-10 tutorial; 1 068 298 parameters for 24x24x3 images and 10 classes.
///
/// The first normalization follows the first pooling; the second precedes the second pooling.
NetSpec tutorial(Extent image, int classes) {
  const auto norm = [](const char* name) {
    return LocalResponseNorm{
        .name = name, .depth_radius = 4, .bias = 1.0f, .alpha = 0.001f / 9.0f, .beta = 0.75f};
  };
  // As in the tutorial, for any number of classes: 192 is the width of the previous layer.
  constexpr float kSoftmaxStddev = 1.0f / 192.0f;
  NetBuilder net("tutorial", image, classes);
  Value x = net.image();
  x = net.conv(x, {.name = "conv1", .out_channels = 64, .kernel = 5, .weight_stddev = 0.05f, .bias = 0.0f});
  x = net.relu(x);
  x = net.max_pool(x, {.name = "pool1", .kernel = 3, .stride = 2});
  x = net.lrn(x, norm("norm1"));
  x = net.conv(x, {.name = "conv2", .out_channels = 64, .kernel = 5, .weight_stddev = 0.05f, .bias = 0.1f});
  x = net.relu(x);
  x = net.lrn(x, norm("norm2"));
  x = net.max_pool(x, {.name = "pool2", .kernel = 3, .stride = 2});
  x = net.linear(
      x, {.name = "local3", .outputs = 384, .weight_stddev = 0.04f, .bias = 0.1f, .weight_decay = 0.004f});
  x = net.relu(x);
  x = net.linear(
      x, {.name = "local4", .outputs = 192, .weight_stddev = 0.04f, .bias = 0.1f, .weight_decay = 0.004f});
  x = net.relu(x);
  x = net.linear(x, {.name = "softmax_linear", .outputs = classes, .weight_stddev = kSoftmaxStddev});
  return net.softmax_cross_entropy(x);
}

}  // namespace cifar_mpi::model
