#pragma once

#include <cstddef>
#include <cstdint>

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/program.hpp"

/// Turns resident uint8 images into the input of a network: crop, flip, brightness, contrast, normalization and cutout in
/// two passes, and downsampling in a third.
namespace cifar_mpi::cpu {

/// The batch of the current step: sample i is `order.at(step, i)`, distorted as `draw_augment` says.
///
/// The first pass over a crop sums values and squares as exact integers; `data::affine_map` turns the sums
/// into a scale and a shift per channel; the second pass writes scale[c]·x + shift[c] (formulas there). A
/// crop that leaves its image is assembled first. Downsampling (data/downsample.hpp) reads the result of the second pass in
/// fp32.
///
///   x       [batch, c, h, w] fp32, or bf16 when `precision` is bf16
///   labels  [batch]
///   bits    do not depend on the number of threads
///   throws  Error{usage} as data::check_crop
engine::Task plan_train_input(const engine::TrainBinding& binding, int batch, engine::Precision precision,
                              std::byte* x, std::uint8_t* labels);

/// Samples [cursor, cursor + batch) in file order, then cursor += batch. After the end of the data images are
/// zeros with label kPaddingLabel. Otherwise as above.
engine::Task plan_evaluate_input(const engine::EvaluateBinding& binding, int batch,
                                 engine::Precision precision, std::byte* x, std::uint8_t* labels);

/// The label of padding; the loss ignores it.
constexpr std::uint8_t kPaddingLabel = 255;

}  // namespace cifar_mpi::cpu
