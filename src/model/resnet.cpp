#include <cmath>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/net_builder.hpp"

/// Residual networks for small images (He, Zhang, Ren and Sun, "Deep Residual Learning for Image
/// Recognition", CVPR 2016): a 3x3 convolution instead of a 7x7 one with pooling, then stages of blocks of
/// two 3x3 convolutions, each stage after the first at half the size and twice the channels.
namespace cifar_mpi::model {
namespace {

/// A convolution without biases, because the BatchNorm after it has one. Initial weights of variance 2/fan-in
/// (He et al., ICCV 2015); cutting the normal at two deviations leaves 0.8796 of its own.
Conv2d conv_of(std::string name, int inputs, int outputs, int kernel, int stride, float weight_decay) {
  return {.name = std::move(name),
          .out_channels = outputs,
          .kernel = kernel,
          .stride = stride,
          .with_bias = false,
          .weight_stddev = std::sqrt(2.0f / static_cast<float>(kernel * kernel * inputs)) / 0.8796f,
          .weight_decay = weight_decay};
}

/// The differences between the two networks.
struct ResNet {
  NetBuilder net;
  bool projects =
      false;  ///< a block that changes the extent has a 1x1 convolution on its shortcut (option B);
              ///< otherwise the shortcut has no parameters (option A)
  float weight_decay = 0.0f;

  Value conv_bn(Value x, const std::string& name, int inputs, int outputs, int kernel, int stride) {
    x = net.conv(x, conv_of(name, inputs, outputs, kernel, stride, weight_decay));
    return net.batch_norm(x, {.name = name + "_bn"});
  }

  /// y = relu(x' + bn(conv(relu(bn(conv(x)))))), x' the shortcut.
  Value block(Value x, const std::string& name, int inputs, int outputs, int stride) {
    Value y = net.relu(conv_bn(x, name + "_conv1", inputs, outputs, 3, stride));
    y = conv_bn(y, name + "_conv2", outputs, outputs, 3, 1);
    if (inputs != outputs || stride != 1) {
      x = projects ? conv_bn(x, name + "_shortcut", inputs, outputs, 1, stride)
                   : net.shortcut(x, {name + "_shortcut", outputs, stride});
    }
    return net.relu(net.add(y, x, {name + "_add"}));
  }

  NetSpec make(int image_channels, int classes, int first_channels, int stages, int blocks) {
    int channels = first_channels;
    Value x = net.relu(conv_bn(net.image(), "conv1", image_channels, channels, 3, 1));
    for (int stage = 1; stage <= stages; ++stage) {
      for (int i = 1; i <= blocks; ++i) {
        const bool widens = stage > 1 && i == 1;
        const int outputs = widens ? 2 * channels : channels;
        x = block(x, concat("stage", stage, "_block", i), channels, outputs, widens ? 2 : 1);
        channels = outputs;
      }
    }
    x = net.global_avg_pool(x, {"pool"});
    const float stddev = std::sqrt(1.0f / static_cast<float>(channels)) / 0.8796f;
    return net.softmax_cross_entropy(net.linear(
        x,
        {.name = "classifier", .outputs = classes, .weight_stddev = stddev, .weight_decay = weight_decay}));
  }
};

}  // namespace

/// 20 layers in three stages of 16, 32 and 64 channels; 269 722 parameters for images of 3 channels and 10 classes.
NetSpec resnet20(Extent image, int classes) {
  return ResNet{NetBuilder("resnet20", image, classes), false, 1e-4f}.make(image.channels, classes, 16, 3, 3);
}

/// ResNet-18 as commonly trained on CIFAR: four stages of 64 to 512 channels, projections on the shortcuts;
/// 11 173 962 parameters for images of 3 channels and 10 classes.
NetSpec resnet18(Extent image, int classes) {
  return ResNet{NetBuilder("resnet18", image, classes), true, 5e-4f}.make(image.channels, classes, 64, 4, 2);
}

}  // namespace cifar_mpi::model
