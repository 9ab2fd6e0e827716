#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/net_builder.hpp"

namespace cifar_mpi::test {

/// A small network drawn from `seed`: layers of every kind over values chosen among all values so far, so
/// that values have several readers, branches join, and some layers are frozen. Values without a reader are
/// added up before the last layer.
class RandomNetwork {
 public:
  explicit RandomNetwork(std::uint64_t seed)
      : seed_(seed),
        image_{3 + below(5), 3 + below(5), 2 + below(3)},
        classes_(3 + below(5)),  // of two, the gradients of samples of both nearly cancel
        net_(concat("random ", seed), image_, classes_) {}

  model::NetSpec make() {
    values_.push_back({net_.image(), image_, 0});
    const int layers = 3 + below(7);
    for (int i = 0; i < layers; ++i) add_layer(i);
    return net_.softmax_cross_entropy(
        net_.linear(join_unread(), {.name = "last", .outputs = classes_, .weight_stddev = 0.3f}));
  }

 private:
  struct Known {
    model::Value value;
    Extent extent;
    int readers = 0;
    bool normalized = false;  ///< by a BatchNorm, followed only by layers that keep channels separate
    int poolings = 0;  ///< directly before it, one after another; the maximum of many values hardly varies
  };

  int below(int end) {
    const std::uint32_t bits = random4(seed_, RandomPurpose::synthetic, drawn_++, 0)[0];
    return static_cast<int>(uniform_below(bits, static_cast<std::uint32_t>(end)));
  }

  /// Usually the newest.
  Known& choose() {
    if (below(3) != 0) return values_.back();
    return values_[static_cast<std::size_t>(below(static_cast<int>(values_.size())))];
  }

  void keep(model::Value value, Extent extent, bool normalized = false) {
    values_.push_back({value, extent, 0, normalized});
  }

  void add_layer(int i) {
    Known& from = choose();
    const Extent in = from.extent;
    const model::Value x = from.value;
    const bool normalized = from.normalized;
    const int poolings = from.poolings;
    const std::string name = concat("layer", i);
    const bool frozen = below(6) == 0;
    ++from.readers;
    switch (below(10)) {
      case 0: {
        constexpr int kChannels[] = {8, 16, 5};
        const int channels = kChannels[below(3)];
        model::Conv2d layer{.name = name, .out_channels = channels, .kernel = 1 + below(4)};
        layer.stride = below(3) == 0 ? 2 + below(2) : 1;
        layer.with_bias = below(3) != 0;
        layer.frozen = frozen;
        layer.frozen_weights = below(6) == 0;
        layer.valid = layer.kernel <= std::min(in.height, in.width) && below(3) == 0;
        const auto out = [&](int n) { return model::padding_of(layer, n).outputs; };
        return keep(net_.conv(x, layer), {out(in.height), out(in.width), channels});
      }
      case 1:
        return keep(net_.relu(x), in, normalized);
      case 2: {
        const int stride = 1 + below(2);
        const bool valid = std::min(in.height, in.width) >= 3 && below(3) == 0;
        const model::MaxPool layer{name, 3, stride, valid};
        const auto out = [&](int n) { return model::padding_of(layer, n).outputs; };
        keep(net_.max_pool(x, layer), {out(in.height), out(in.width), in.channels}, normalized);
        values_.back().poolings = poolings + 1;
        return;
      }
      case 3:
        return keep(net_.lrn(x, {name, 2, 1.0f, 0.05f, 0.75f}), in);
      case 4: {
        const int outputs = 3 + below(20);
        model::Linear layer{.name = name, .outputs = outputs, .with_bias = below(3) != 0};
        layer.frozen = frozen;
        return keep(net_.linear(x, layer), {1, 1, outputs});
      }
      case 5:
        // One or two values per sample would be too few, and the gradient of a BatchNorm's scale before another
        // BatchNorm is only rounding. A large epsilon or channels that hardly vary amplify rounding.
        if (in.height * in.width <= 2 || normalized || poolings > 1)
          return keep(net_.relu(x), in, normalized);
        return keep(net_.batch_norm(
                        x, {.name = name, .epsilon = 0.1f, .with_scale = below(3) != 0, .frozen = frozen}),
                    in, true);
      case 6:  // the values of an image cancel, so their mean would be only rounding
        if (x == net_.image()) return keep(net_.relu(x), in);
        return keep(net_.global_avg_pool(x, {name}), {1, 1, in.channels});
      case 7: {
        const model::Shortcut layer{name, in.channels + below(4), 1 + below(2)};
        const auto out = [&](int n) { return (n + layer.stride - 1) / layer.stride; };
        return keep(net_.shortcut(x, layer), {out(in.height), out(in.width), layer.out_channels}, normalized);
      }
      case 8: {
        const int kind = below(3);
        if (kind == 0) return keep(net_.silu(x), in);
        return keep(kind == 1 ? net_.gelu(x) : net_.scale(x, 0.5f), in, kind == 2 && normalized);
      }
      default:
        return add_sum(x, in, name, normalized);
    }
  }

  /// Adds `x` and the last other value of its extent, or itself if there is none.
  void add_sum(model::Value x, const Extent& extent, const std::string& name, bool normalized) {
    model::Value other = x;
    for (Known& known : values_) {
      if (known.extent == extent && !(known.value == x)) other = known.value;
    }
    for (Known& known : values_) {
      if (!(known.value == other)) continue;
      ++known.readers;
      normalized = normalized || known.normalized;
    }
    keep(net_.add(x, other, {name}), extent, normalized);
  }

  model::Value join_unread() {
    std::vector<model::Value> ends;
    for (const Known& known : values_) {
      if (known.readers == 0) ends.push_back(known.value);
    }
    model::Value sum = ends.front();
    if (ends.size() == 1) return sum;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      ends[i] = net_.linear(ends[i], {.name = concat("end", i), .outputs = 6});
      sum = i == 0 ? ends[0] : net_.add(sum, ends[i], {concat("join", i)});
    }
    return sum;
  }

  std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
  Extent image_;
  int classes_;
  model::NetBuilder net_;
  std::vector<Known> values_;
};

}  // namespace cifar_mpi::test
