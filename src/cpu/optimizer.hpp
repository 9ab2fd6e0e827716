#pragma once

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/layout.hpp"
#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/model/param_table.hpp"

/// Stochastic gradient descent and the moving average, in one pass over the blocks.
namespace cifar_mpi::cpu {

/// For every float of [begin, end), with the weight decay λ of its parameter:
///   w' = w − lr·(g + λ·w)            lr = Schedule(schedule).rate(step)
///   ema' = ema + (1 − d)·(w' − ema)  d = optim::ema_decay(ema_decay, step)
/// and decay_sum = Σ λ·½w² of the values before the update, in double.
///
///   freeze  when control[loss_sum] is not finite, params and ema keep their bits; decay_sum is still written
///   bits    do not depend on the number of threads: the span is cut into fixed chunks, summed in order
///   zeros   padding (w = g = ema = 0) stays zero
///   throws  std::logic_error when the table and the layout differ, or [begin, end) cuts a parameter
engine::Task plan_update(const engine::UpdateBinding& binding, const model::ParamTable& params,
                         const engine::ParamLayout& layout);

}  // namespace cifar_mpi::cpu
