#include "cuda/kernels.hpp"

#include <algorithm>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::cuda {
namespace {

MatmulShape forward_shape(const Affine& affine, int batch, engine::Precision precision) {
  MatmulShape shape;
  shape.m = affine.rows(batch);
  shape.n = affine.outputs;
  shape.k = affine.row;
  shape.in = value_type(precision);
  shape.out = affine.logits ? ValueType::fp32 : shape.in;
  shape.tf32 = precision == engine::Precision::tf32;
  shape.epilogue = affine.relu ? Epilogue::bias_relu : affine.biased ? Epilogue::bias : Epilogue::none;
  return shape;
}

/// A library computes about 128x128 of a result at once. A weight gradient is small with a long sum, so it
/// would occupy only a few of a GPU's hundred multiprocessors: its sum is split, by a fixed rule, because
/// that affects bits.
int slices_of(const MatmulShape& shape) {
  constexpr std::int64_t kTile = 128, kTiles = 128, kLeastDepth = 1024, kGroup = 8;
  constexpr int kMost = 64, kLeast = 4;  // fewer do not pay for the additions
  const std::int64_t tiles = ((shape.m + kTile - 1) / kTile) * ((shape.n + kTile - 1) / kTile);
  int slices = 1;
  while (slices < kMost && 2 * slices * tiles <= kTiles && shape.k % (2 * slices * kGroup) == 0 &&
         shape.k / (2 * slices) >= kLeastDepth) {
    slices *= 2;
  }
  return slices < kLeast ? 1 : slices;
}

/// xᵀ · grad_y, fp32 in every precision.
MatmulShape weight_gradient_shape(const Affine& affine, int batch, engine::Precision precision) {
  MatmulShape shape = forward_shape(affine, batch, precision);
  shape.m = affine.row;
  shape.k = affine.rows(batch);
  shape.transpose_a = true;
  shape.out = ValueType::fp32;
  shape.epilogue = Epilogue::none;
  shape.slices = slices_of(shape);
  return shape;
}

/// grad_y · weightsᵀ, or for a convolution the windows of grad_y times the rotated weights.
MatmulShape data_gradient_shape(const Affine& affine, int batch, engine::Precision precision) {
  MatmulShape shape = forward_shape(affine, batch, precision);
  shape.m = affine.in_rows(batch);
  shape.n = affine.is_conv() ? affine.in.channels : affine.inner;
  shape.k = affine.is_conv() ? affine.backward_patches(batch).row : affine.outputs;
  shape.transpose_b = !affine.is_conv();
  shape.out = shape.in;
  shape.epilogue = Epilogue::none;
  return shape;
}

/// cuDNN only accepts equal padding on both sides, so an odd kernel with padding; it is slow with few channels, and
/// without tf32 it beats a product nowhere.
bool suits_library(const Affine& affine, engine::Precision precision, ConvChoice choice) {
  if (!affine.is_conv() || affine.kernel % 2 == 0 || affine.before != affine.kernel / 2 ||
      choice == ConvChoice::products) {
    return false;
  }
  return choice == ConvChoice::library ||
         (precision != engine::Precision::fp32 && affine.in.channels % 8 == 0 && affine.outputs % 8 == 0);
}

constexpr std::pair<ConvDirection, const char*> kDirections[] = {
    {ConvDirection::forward, "forward"},
    {ConvDirection::weight_gradient, "weight gradient"},
    {ConvDirection::data_gradient, "data gradient"}};

std::size_t largest(const Matmul& product) {
  return std::max({product.bytes_a(), product.bytes_b(), product.bytes_d()});
}

}  // namespace

const AffineKernels& NetKernels::add(const std::string& name, const Affine& affine) {
  Entry entry{name,
              {std::nullopt, Matmul(forward_shape(affine, batch_, precision_)),
               Matmul(weight_gradient_shape(affine, batch_, precision_)), std::nullopt},
              affine.wants_grad_x,
              0};
  if (affine.wants_grad_x) {
    entry.kernels.data_gradient.emplace(data_gradient_shape(affine, batch_, precision_));
  }
  if (suits_library(affine, precision_, choice_)) {
    const ValueType type = value_type(precision_);
    entry.kernels.library.emplace(
        LibraryConvShape{batch_, affine.in, affine.outputs, affine.kernel, type, affine.stride});
    const std::int64_t weights = std::int64_t{affine.inner} * affine.outputs;
    const std::int64_t values = std::max(
        {affine.in_rows(batch_) * affine.in.channels, affine.rows(batch_) * affine.outputs, weights});
    entry.library_bytes = static_cast<std::size_t>(values) * bytes_per(type);
  }
  entries_.push_back(std::move(entry));
  return entries_.back().kernels;
}

std::size_t NetKernels::library_trial_bytes() const {
  std::size_t most = 0;
  for (const auto& entry : entries_) {
    if (entry.kernels.library) most = std::max(most, entry.library_bytes);
  }
  return most;
}

void NetKernels::plan_library(const Trial& trial, Ladder& ladder) {
  for (auto& entry : entries_) {
    if (!entry.kernels.library) continue;
    LibraryConv& library = *entry.kernels.library;
    bool some = false;
    for (const auto& [direction, what] : kDirections) {
      if (direction == ConvDirection::data_gradient && !entry.wants_grad_x) continue;
      const std::string kernel = concat(prefix_, entry.name, ' ', what);
      const int start = ladder.start_of(kernel), rung = library.plan(direction, trial, start);
      some = some || rung < kConvRungs;
      if (rung == 0) continue;
      const std::string why = library.why().empty() ? "another rank needs it" : library.why();
      ladder.step_down(kernel, rung,
                       rung == kConvRungs
                           ? concat("a product of windows and weights instead of cuDNN, an estimated 4 times "
                                    "slower, because ",
                                    why)
                           : concat("cuDNN's candidate ", rung + 1,
                                    " instead of 1, which it expects to be slower, "
                                    "because ",
                                    why));
    }
    if (!some) entry.kernels.library.reset();
  }
}

template <class AnyEntry, class Visit>
void NetKernels::visit_products(AnyEntry& entry, Visit visit) {
  auto& kernels = entry.kernels;
  for (const auto& [direction, what] : kDirections) {
    if (kernels.library_for(direction) != nullptr) continue;
    const std::string name = concat(entry.name, ' ', what);
    if (direction == ConvDirection::forward) {
      visit(name, kernels.forward);
    } else if (direction == ConvDirection::weight_gradient) {
      visit(name, kernels.weight_gradient);
    } else if (kernels.data_gradient) {
      visit(name, *kernels.data_gradient);
    }
  }
}

std::size_t NetKernels::product_trial_bytes() const {
  std::size_t most = 0;
  for (const auto& entry : entries_) {
    visit_products(
        entry, [&](const std::string&, const Matmul& product) { most = std::max(most, largest(product)); });
  }
  return most;
}

void NetKernels::plan_products(const Trial& trial, Ladder& ladder) {
  const auto plan = [&](const std::string& name, Matmul& product) {
    const std::string kernel = concat(prefix_, name, " product");
    product.plan(trial, ladder.start_of(kernel));
    if (product.rung() == 0) return;
    const bool plain = product.rung() == kPlainRung;
    ladder.step_down(
        kernel, product.rung(),
        plain ? "our plain kernel, about 40 times slower, because cuBLASLt has no algorithm that runs"
              : concat("cuBLASLt's candidate ", product.rung() + 1,
                       ", which it expects to be slower, because those before do not run"));
  };
  for (auto& entry : entries_) visit_products(entry, plan);
}

std::string NetKernels::text() const {
  std::string text;
  for (const auto& entry : entries_) {
    if (entry.kernels.library) text += concat(entry.name, ": ", entry.kernels.library->text(), '\n');
    visit_products(entry, [&](const std::string& name, const Matmul& product) {
      text += concat(name, ": ", product.text(), '\n');
    });
  }
  return text;
}

}  // namespace cifar_mpi::cuda
