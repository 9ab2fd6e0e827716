#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/engine/branches.hpp"
#include "cifar_mpi/engine/program.hpp"

/// What ways to update share that hand spans of gradients on while backward still goes on.
namespace cifar_mpi::comm {

/// What is handed on of one span; the first also carries the control block, which stands before the gradients.
std::span<float> array_of(std::size_t index, const ParamSpan& span, const StepParts& parts);

/// The last compute task that touches the array. A task that reads it wants this rank's gradient, not yet
/// what becomes of it. Throws std::logic_error when no task writes one that is not empty.
std::size_t last_user(const std::vector<engine::Task>& compute, std::span<const float> array);

/// Lets the comm lane wait for what there is, and then run the tasks of all spans that are ready after
/// compute task `position`. Returns through `done` the mark behind each.
class SpanQueue {
 public:
  SpanQueue(engine::StepProgram& program, engine::Branches& branches, std::vector<std::size_t> ready_after,
            std::vector<engine::Task> tasks);

  void run_ready_after(std::size_t position);

  engine::MarkId done(std::size_t span) const { return done_[span]; }
  /// Behind all of them so far: a lane keeps its order.
  engine::MarkId last() const { return last_; }

 private:
  engine::StepProgram& program_;
  engine::Branches& branches_;
  std::vector<std::size_t> ready_after_;
  std::vector<engine::Task> tasks_;
  std::vector<engine::MarkId> done_;
  engine::MarkId last_ = {};
};

}  // namespace cifar_mpi::comm
