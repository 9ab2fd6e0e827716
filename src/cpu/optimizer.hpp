#pragma once

#include "cifar_mpi/engine/arena.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/layout.hpp"
#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/model/param_table.hpp"

/// The optimizer and the moving average, in one pass over the blocks.
namespace cifar_mpi::cpu {

/// For every float of [begin, end), with the weight decay λ of its parameter:
///   w' by the optimizer's rule in optim/step_math.hpp, at lr = Schedule(schedule).rate(step); for sgd
///        w − lr·(g + λ·w). With clipping, g is first multiplied by optim::clip_factor
///   ema' = ema + (1 − d)·(w' − ema)  d = optim::ema_decay(average, step, average_steps)
/// and decay_sum = Σ λ·½w² of the values before the update, in double; 0 if λ is not part of the loss.
///
///   freeze  if control[loss_sum] or the gradient's norm is not finite, params, ema and the optimizer's state
///           keep their bits, except in a local step (average_steps = 0); decay_sum is still written
///   bits    do not depend on the number of threads: the span is cut into fixed chunks, summed in order
///   zeros   padding (w = g = ema = 0, and the optimizer's state) stays zero
///   throws  std::logic_error when the table and the layout differ, or [begin, end) is not of multiples of 16
engine::Task plan_update(const engine::UpdateBinding& binding, const model::ParamTable& params,
                         const engine::ParamLayout& layout);

/// The move of one matrix (engine::Backend::matrix_tasks). Products are oneDNN's.
std::vector<engine::Task> plan_matrix(const engine::UpdateBinding& binding, const engine::Matrix& matrix,
                                      engine::Arena& arena);

/// norm = √Σ grads². It sums the same chunks in order, so bits do not depend on the number of threads.
/// `floats` is a multiple of 16.
engine::Task plan_gradient_norm(const engine::GradientNormBinding& binding);

/// The pull of a step (see LookaheadBinding).
engine::Task plan_lookahead(const engine::LookaheadBinding& binding);

/// The running statistics of a step (see RunningBinding).
engine::Task plan_running(const engine::RunningBinding& binding, const model::ParamTable& params,
                          const engine::ParamLayout& layout);

}  // namespace cifar_mpi::cpu
