#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"
#include "cuda/control.hpp"
#include "cuda/count.hpp"
#include "cuda/loss.hpp"
#include "cuda/optimizer.hpp"
#include "cuda/value_type.hpp"

/// The tasks of a step that do not depend on the network. Building them needs no device: addresses are
/// stored, not dereferenced.
namespace cifar_mpi::cuda {

/// `request_word` is the pinned word for the binding's requests, or null.
engine::Task plan_control(const engine::TrainBinding& binding, const int* request_word);

/// The last compute task of a step: stores the time since plan_control's task.
engine::Task plan_compute_time(engine::RankFacts* facts);

/// x is [batch, crop_h, crop_w, c], NHWC. Throw Error{usage} when the crop does not fit the images, has more
/// than data::kMostChannels channels or more than data::kMostCropPixels pixels.
engine::Task plan_train_input(const engine::TrainBinding& binding, int batch, ValueType type, std::byte* x,
                              std::uint8_t* labels);
engine::Task plan_evaluate_input(const engine::EvaluateBinding& binding, int batch, ValueType type,
                                 std::byte* x, std::uint8_t* labels);

engine::Task plan_train_loss(const engine::TrainBinding& binding, const LossInput& input,
                             std::byte* grad_logits, ValueType grad_type);
engine::Task plan_evaluate_loss(const engine::EvaluateBinding& binding, const LossInput& input);

/// `partials` is kUpdateBlocks doubles, `counter` a word that is zero before and after; no other task uses
/// them.
engine::Task plan_update(const engine::UpdateBinding& binding, const model::ParamTable& params,
                         const engine::ParamLayout& layout, double* partials, unsigned* counter);

/// `partials` and `counter` as above.
engine::Task plan_gradient_norm(const engine::GradientNormBinding& binding, double* partials,
                                unsigned* counter);
/// The running statistics of a step (see RunningBinding).
engine::Task plan_running(const engine::RunningBinding& binding, const model::ParamTable& params,
                          const engine::ParamLayout& layout);

/// The pull of a step (see LookaheadBinding).
engine::Task plan_lookahead(const engine::LookaheadBinding& binding);

/// `scratch` has count_scratch_bytes for as many tensors, at most kMostCounted.
engine::Task plan_count(std::string name, ValueType type, const std::vector<CountedTensor>& tensors,
                        std::byte* scratch);

/// dst [count] fp32: the first values of x.
engine::Task plan_keep_images(const std::byte* x, ValueType type, std::size_t count, float* dst);

/// `ring` receives the record; the rest comes from the binding.
engine::Task plan_advance(const engine::AdvanceBinding& binding, Advance ring);

engine::Task plan_sum(std::string name, const engine::SumBinding& binding);

/// Between device memory and pinned host memory, in either direction, by the device's copy engines.
engine::Task plan_copy(std::string name, const std::vector<engine::CopyBinding>& bindings);

/// ++*counter
engine::Task plan_increment(std::string name, std::uint64_t* counter);

}  // namespace cifar_mpi::cuda
