#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/engine/branches.hpp"
#include "cifar_mpi/engine/program.hpp"

/// Common code of ways to update that send spans of gradients during backward.
namespace cifar_mpi::comm {

/// The last compute task that touches the array. A task that reads it needs this rank's gradient, not the
/// sum. Throws std::logic_error when no task writes one that is not empty.
std::size_t last_user(const std::vector<engine::Task>& compute, std::span<const float> array);

/// Makes the comm lane wait for the spans that are ready after compute task `position`, and then run their
/// tasks. Returns the mark after each through `done`.
class SpanQueue {
 public:
  SpanQueue(engine::StepProgram& program, engine::Branches& branches, std::vector<std::size_t> ready_after,
            std::vector<engine::Task> tasks);

  void run_ready_after(std::size_t position);

  engine::MarkId done(std::size_t span) const { return done_[span]; }
  /// After all tasks so far, because a lane keeps its order.
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
