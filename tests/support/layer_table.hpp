#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "cifar_mpi/model/net_builder.hpp"
#include "support/expect_equal.hpp"
#include "support/layer_run.hpp"

/// The layers that both backends have kernels for, each against the double-precision reference: one table.
namespace cifar_mpi::test {

enum class Values : std::uint8_t {
  /// Multiples of 1/64 in [−1, 1]: exact in bf16 and tf32, and a sum of products of two of them is exact in fp32 in any
  /// order as long as it stays below 2^24 / 2^12 = 4096.
  lattice,
  steps,  ///< few different values, so that windows have ties; gradients whose sums are exact in bf16
  nan,    ///< of a lattice, with some NaNs
  noise,  ///< uniform in [-1, 1)
};

/// The inputs and tolerances of a case.
struct Terms {
  Values values = Values::lattice;
  /// 0: equal. Else the number of roundings of fp32, and of a shorter type of values, allowed between results
  /// and reference, in length.
  double fp32_units = 0.0;
  double short_units = 1.0;
  double grad_units = 0.0;     ///< of fp32 in gradients; 0: as many
  double library_units = 0.0;  ///< of the product type, for a GPU's library
  double middle = 0.0;         ///< of noise
  bool first = false;          ///< reads images: no gradient
  bool gradients = true;       ///< layers may map a NaN to any value
  bool fp32_alone = false;
  bool logits = false;  ///< outputs logits, which stay fp32
  bool synced = false;  ///< statistics of two ranks that have the same batch
};

/// Layers in a row; an Add adds what the first of them reads.
struct LayerCase {
  int batch = 1;
  Extent in;
  std::vector<model::Layer> layers;
  Terms terms = {};

  std::string text() const {
    std::string all =
        concat(batch, 'x', to_string(in), terms.first ? ", first" : "", terms.synced ? ", synced" : "");
    const auto name = [](const auto& layer) {
      if constexpr (requires { layer.kernel; })
        return concat(layer.name, layer.kernel, '/', layer.stride);
      else if constexpr (requires { layer.name; })
        return layer.name;
      else if constexpr (requires { layer.factor; })
        return concat("pointwise ", static_cast<int>(layer.kind));
      else
        return std::string("relu");
    };
    for (const model::Layer& layer : layers) all += ", " + std::visit(name, layer);
    return all;
  }
};

struct LayerGroup {
  const char* name;
  std::vector<LayerCase> cases;
  friend void PrintTo(const LayerGroup& group, std::ostream* out) { *out << group.name; }
};

inline std::vector<LayerCase> convolutions() {
  using model::Conv2d, model::Relu;
  const Relu relu;
  std::vector<LayerCase> all{
      {2, {24, 24, 3}, {Conv2d{"c", 64, 5}, relu}, {.first = true}},
      {1, {7, 9, 1}, {Conv2d{"c", 16, 3}}, {.first = true}},
      {3, {7, 9, 4}, {Conv2d{"c", 65, 5}, relu}, {.first = true}},
      {2, {12, 12, 64}, {Conv2d{"c", 64, 5}, relu}, {.library_units = 4.0}},
      {2, {7, 9, 65}, {Conv2d{"c", 17, 3}}},
      {20, {7, 9, 65}, {Conv2d{"c", 17, 3}}},  // a CPU processes it in pieces
      {2, {6, 5, 16}, {Conv2d{"c", 64, 4}, relu}},
      {2, {6, 5, 16}, {Conv2d{"c", 32, 3}, relu}, {.library_units = 4.0}},
      {5, {5, 5, 20}, {Conv2d{"c", 10, 2}}},
      {2, {3, 2, 8}, {Conv2d{"c", 8, 5}, relu}, {.library_units = 4.0}},
      {4, {1, 1, 33}, {Conv2d{"c", 7, 1}}},
      {3, {7, 5, 3}, {Conv2d{"c", 9, 3, 1, false}, relu}},
  };
  for (const int kernel : {1, 2, 3, 5}) {
    for (const int stride : {1, 2, 3}) all.push_back({3, {7, 5, 3}, {Conv2d{"c", 9, kernel, stride}}});
  }
  for (const int kernel : {1, 2, 3}) {
    for (const int stride : {1, 2}) {
      const Conv2d valid{
          .name = "valid", .out_channels = 16, .kernel = kernel, .stride = stride, .valid = true};
      all.push_back({3, {8, 5, 3}, {valid, relu}, {.first = true}});
      all.push_back({5, {7, 6, 16}, {valid}, {.library_units = 4.0}});
    }
  }
  const Conv2d half_frozen{
      .name = "half frozen", .out_channels = 24, .kernel = 2, .valid = true, .frozen_weights = true};
  all.push_back({2, {9, 8, 3}, {half_frozen}, {.first = true}});
  all.push_back({2, {9, 8, 16}, {half_frozen, relu}});
  for (const int stride : {1, 2}) {
    all.push_back({6, {12, 11, 16}, {Conv2d{"c", 24, 5, stride}}, {.library_units = 4.0}});
  }
  return all;
}

inline std::vector<LayerCase> products() {
  using model::Linear, model::Relu;
  return {
      {5, {6, 6, 64}, {Linear{"l", 384}, Relu{}}},
      {3, {2, 3, 5}, {Linear{"l", 65}, Relu{}}},
      {33, {1, 1, 65}, {Linear{"l", 16}}},
      {128, {1, 1, 192}, {Linear{"l", 10}}, {.logits = true}},
      {1, {1, 1, 17}, {Linear{"l", 7}}, {.logits = true}},
      {2, {7, 9, 3}, {Linear{"l", 10}}, {.logits = true}},
      {3, {1, 1, 64}, {Linear{.name = "without", .outputs = 10, .with_bias = false}}, {.logits = true}},
      {3, {2, 3, 5}, {Linear{.name = "without", .outputs = 24, .with_bias = false}, Relu{}}},
  };
}

inline std::vector<LayerCase> poolings() {
  using model::Conv2d, model::MaxPool, model::Relu;
  std::vector<LayerCase> all;
  const auto add = [&](int batch, const Extent& in, int kernel, int stride) {
    for (const Values values : {Values::steps, Values::nan}) {
      all.push_back({batch, in, {MaxPool{"p", kernel, stride}}, {values}});
    }
  };
  add(2, {12, 12, 64}, 3, 2);
  add(2, {16, 16, 64}, 3, 2);
  add(3, {7, 9, 65}, 3, 2);
  add(17, {7, 9, 3}, 2, 2);
  add(1, {7, 9, 4}, 3, 2);
  add(2, {9, 7, 20}, 3, 2);
  add(17, {5, 5, 16}, 3, 1);
  add(2, {7, 7, 16}, 2, 3);
  add(2, {6, 6, 16}, 5, 2);
  add(2, {1, 1, 8}, 3, 2);
  add(1, {11, 13, 1}, 5, 1);
  add(2, {8, 5, 24}, 5, 3);
  add(17, {3, 4, 9}, 2, 1);
  add(1, {5, 6, 33}, 3, 3);
  add(2, {20, 17, 8}, 15, 1);
  add(2, {2, 3, 7}, 5, 2);
  for (const auto& [kernel, stride] : {std::pair{2, 2}, std::pair{3, 2}, std::pair{2, 3}, std::pair{1, 2}}) {
    const MaxPool valid{"valid", kernel, stride, true};
    all.push_back({3, {7, 8, 16}, {valid}, {Values::steps}});
    all.push_back({3, {5, 7, 3}, {valid}, {Values::nan}});
    all.push_back({4, {9, 7, 5}, {Conv2d{"c", 16, 2}, Relu{}, valid}});
  }
  all.push_back({2, {3, 3, 24}, {MaxPool{"global", 3, 3}}, {Values::steps}});
  all.push_back({2, {7, 4, 5}, {MaxPool{"global", 7, 7}}, {Values::nan}});
  for (const auto& [kernel, stride] : {std::pair{3, 2}, std::pair{2, 2}, std::pair{3, 1}, std::pair{2, 3}}) {
    // after biases and a ReLU, in formats that convolutions choose
    for (const int channels : {5, 16}) {
      all.push_back({4, {9, 7, channels}, {Conv2d{"c", channels, 2}, Relu{}, MaxPool{"p", kernel, stride}}});
    }
    all.push_back({4, {9, 7, 5}, {Relu{}, MaxPool{"p", kernel, stride}}});
  }
  return all;
}

/// Sums of squares, two roots and a division.
inline std::vector<LayerCase> response_norms() {
  using model::Conv2d, model::LocalResponseNorm, model::MaxPool, model::Relu;
  std::vector<LayerCase> all;
  const auto add = [&](int batch, const Extent& in, std::vector<model::Layer> layers, Values values) {
    Terms terms{.values = values, .fp32_units = 16.0, .grad_units = 32.0, .gradients = values != Values::nan};
    if (std::holds_alternative<Conv2d>(layers[0])) terms.library_units = 4.0;  // it multiplies rounded values
    all.push_back({batch, in, std::move(layers), terms});
  };
  add(1, {3, 1, 1500}, {LocalResponseNorm{"n", 4, 1.0f, 0.05f, 0.75f}}, Values::noise);
  for (const int channels : {1, 5, 10, 16, 32, 64, 128, 200}) {
    for (const float beta : {0.75f, 0.5f, 1.0f}) {
      if (beta != 0.75f && channels != 10 && channels != 64) continue;
      const LocalResponseNorm norm{"n", 4, 1.0f, 0.05f, beta};
      add(1, {37, 1, channels}, {norm}, Values::noise);
      add(2, {7, 1, channels}, {Relu{}, norm}, Values::lattice);
      if (channels <= 64) add(1, {5, 3, channels}, {Conv2d{"c", channels, 3}, Relu{}, norm}, Values::lattice);
    }
    add(2, {4, 3, channels}, {LocalResponseNorm{"n", 4, 1.0f, 0.05f, 0.75f}}, Values::nan);
  }
  for (const int radius : {0, 1, 2, 17})
    add(2, {7, 3, 16}, {LocalResponseNorm{"n", radius, 2.0f, 0.1f, 0.75f}}, Values::noise);
  return all;
}

inline std::vector<LayerCase> batch_norms() {
  using model::Add, model::BatchNorm, model::Pointwise, model::Relu;
  const Pointwise silu;
  const BatchNorm norm{.name = "bn", .epsilon = 1e-3f};
  std::vector<LayerCase> all;
  for (const auto& [batch, in] : {std::pair{2, Extent{1, 1, 8}},
                                  {37, {1, 1, 5}},
                                  {7, {10, 10, 16}},
                                  {257, {1, 1, 1}},
                                  {11, {10, 10, 72}},
                                  {15, {10, 10, 130}},
                                  {3, {13, 1, 32}},
                                  {2, {5, 1, 5}},
                                  {6, {1, 1, 24}}}) {
    // With two values per channel the gradient is only the effect of epsilon, so x̂² must be near 1.
    const double grad_units = batch * in.height * in.width == 2 ? 32.0 / 1e-3 : 32.0;
    for (const std::vector<model::Layer>& layers :
         {std::vector<model::Layer>{norm}, {norm, Relu{}}, {norm, silu}, {norm, Add{"sum"}, Relu{}}}) {
      all.push_back({batch, in, layers, {Values::noise, 16.0, 2.0, grad_units, 0.0, 0.3}});
    }
    if (batch > 7) continue;
    for (const std::vector<model::Layer>& layers : {std::vector<model::Layer>{norm, Relu{}}, {norm, silu}})
      all.push_back({batch, in, layers, {Values::nan, 16.0, 2.0, grad_units}});
  }
  const Terms noise{
      .values = Values::noise, .fp32_units = 16.0, .short_units = 2.0, .grad_units = 32.0, .middle = 0.3};
  BatchNorm unscaled = norm;
  unscaled.with_scale = false;
  for (const std::vector<model::Layer>& layers : {std::vector<model::Layer>{unscaled},
                                                  {unscaled, Relu{}},
                                                  {unscaled, silu},
                                                  {unscaled, Add{"sum"}, Relu{}}}) {
    all.push_back({7, {5, 4, 24}, layers, noise});
  }
  Terms synced = noise, synced_nan = noise;
  synced.synced = synced_nan.synced = true;
  synced_nan.values = Values::nan, synced_nan.middle = 0.0;
  for (const auto& [batch, in] :
       {std::pair{37, Extent{1, 1, 5}}, {7, {10, 10, 16}}, {11, {10, 10, 72}}, {3, {13, 1, 130}}}) {
    for (const std::vector<model::Layer>& layers : {std::vector<model::Layer>{norm},
                                                    {norm, Relu{}},
                                                    {norm, silu},
                                                    {norm, Add{"sum"}, Relu{}},
                                                    {unscaled, Relu{}},
                                                    {unscaled, silu}})
      all.push_back({batch, in, layers, synced});
    for (const std::vector<model::Layer>& layers : {std::vector<model::Layer>{norm, Relu{}}, {norm, silu}})
      all.push_back({batch, in, layers, synced_nan});
  }
  for (Terms terms : {noise, synced}) {
    terms.first = true;
    for (const std::vector<model::Layer>& layers : {std::vector<model::Layer>{norm, Relu{}}, {norm, silu}})
      all.push_back({11, {10, 10, 24}, layers, terms});
  }
  BatchNorm frozen = norm;
  frozen.frozen = true;
  for (const std::vector<model::Layer>& layers : {std::vector<model::Layer>{frozen, Relu{}}, {frozen, silu}})
    all.push_back({11, {10, 10, 24}, layers, noise});
  // x − mean is exact except for the rounding of the mean, relative to its own size
  all.push_back({11,
                 {10, 10, 24},
                 {norm},
                 {.values = Values::noise,
                  .fp32_units = 16e3,
                  .grad_units = 32e3,
                  .middle = 1000.0,
                  .fp32_alone = true}});
  return all;
}

inline std::vector<LayerCase> other_layers() {
  using model::Add, model::GlobalAvgPool, model::Pointwise, model::PointwiseKind, model::Relu,
      model::Shortcut;
  std::vector<LayerCase> all;
  for (const Extent in : {Extent{13, 1, 37}, {10, 10, 72}, {43, 7, 8}, {2, 1, 300}, {3, 1, 600}, {1, 1, 3}}) {
    for (const Values values : {Values::lattice, Values::nan})
      all.push_back({1, in, {Relu{}}, {.values = values, .gradients = values != Values::nan}});
    all.push_back({2, in, {Relu{}, Add{"sum"}}});
  }
  for (const PointwiseKind kind : {PointwiseKind::silu, PointwiseKind::gelu, PointwiseKind::scale}) {
    for (const Extent in : {Extent{13, 1, 37}, {10, 10, 72}, {1, 1, 3}}) {
      const Pointwise layer{kind, 0.3f};
      // an exponential of a rounded argument, a few products and a division
      all.push_back({3, in, {layer}, {.values = Values::noise, .fp32_units = 8.0, .short_units = 2.0}});
      all.push_back({2,
                     in,
                     {layer},
                     {.values = Values::noise, .fp32_units = 32.0, .short_units = 2.0, .middle = -4.0}});
      all.push_back({1,
                     in,
                     {layer},
                     {.values = Values::nan, .fp32_units = 8.0, .short_units = 2.0, .gradients = false}});
    }
  }
  for (const Extent in : {Extent{1, 1, 8}, {4, 4, 5}, {8, 8, 64}, {7, 7, 136}, {20, 15, 67}}) {
    // sums are exact, so a division and a rounding are left
    all.push_back({3, in, {GlobalAvgPool{"mean"}}, {Values::lattice, 2.0, 2.0}});
  }
  for (const auto& [channels, outputs] :
       {std::pair{16, 32}, std::pair{3, 3}, std::pair{5, 8}, std::pair{8, 13}, std::pair{8, 8}}) {
    for (const int stride : {1, 2, 3}) all.push_back({2, {7, 6, channels}, {Shortcut{"s", outputs, stride}}});
  }
  return all;
}

inline std::vector<LayerGroup> layer_table() {
  return {{"Convolutions", convolutions()}, {"Products", products()},
          {"Poolings", poolings()},         {"ResponseNorms", response_norms()},
          {"BatchNorms", batch_norms()},    {"OtherLayers", other_layers()}};
}

}  // namespace cifar_mpi::test
