#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/net_builder.hpp"

namespace cifar_mpi::model {

/// A small network for few epochs, after Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (2024), with a global
/// max-pooling, SiLU and the rates of later variants; 1 971 640 parameters for images of 3 channels and 10 classes.
///
/// Frozen filters whiten 2x2 patches, and their biases train in the first 7 steps. Three groups of two 3x3 convolutions
/// follow. The rates of biases and of the last layer are multiples of the filters', because all of the network works at
/// one rate otherwise: a BatchNorm divides by the size of the filters before it, but not of anything else.
NetSpec fast94(Extent image, int classes) {
  constexpr int kWidths[] = {64, 256, 256};
  constexpr float kBiasRate = 64.0f, kHeadRate = 605.0f, kDecay = 1e-6f;
  NetBuilder net("fast94", image, classes);
  Value x = net.conv(net.image(), {.name = "whitening",
                                   .out_channels = 2 * 4 * image.channels,
                                   .kernel = 2,
                                   .rate_factor = kBiasRate,
                                   .valid = true,
                                   .filters = Filters::whitening,
                                   .frozen_weights = true,
                                   .bias_steps = 7});
  x = net.gelu(x);
  for (int group = 1; group <= 3; ++group) {
    for (int i = 1; i <= 2; ++i) {
      const std::string name = concat("group", group, "_conv", i);
      x = net.conv(x, {.name = name,
                       .out_channels = kWidths[group - 1],
                       .kernel = 3,
                       .with_bias = false,
                       .weight_decay = kDecay,
                       .filters = Filters::identity});
      if (i == 1)
        x = net.max_pool(x, {.name = concat("pool", group), .kernel = 2, .stride = 2, .valid = true});
      x = net.silu(net.batch_norm(x, {.name = name + "_bn",
                                      .epsilon = 1e-12f,
                                      .momentum = 0.5566f,
                                      .with_scale = false,
                                      .rate_factor = kBiasRate}));
    }
  }
  // The scale of the logits comes before the layer that gives them, where it is exact and the layer stays the last.
  x = net.scale(net.global_max_pool(x, "pool4"), 1.0f / 256.0f);
  x = net.linear(x, {.name = "head",
                     .outputs = classes,
                     .weight_stddev = 1.0f / 0.8796f,  // 1 after cutting at two deviations
                     .weight_decay = kDecay,
                     .rate_factor = kHeadRate,
                     .with_bias = false});
  return net.softmax_cross_entropy(x);
}

}  // namespace cifar_mpi::model
