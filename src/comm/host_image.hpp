#pragma once

#include <span>
#include <string>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::comm {

/// Copies, in pinned host memory, of the arrays that a worker with a device exchanges: messages are sent from
/// and received into them. Also the tasks that copy to and from the device.
class HostImage {
 public:
  /// For a block and arrays in the memory of `device`, which must outlive the tasks, like `block`.
  HostImage(engine::Backend& device, const GradientBlock& block, const StepState& state);

  /// The same on the host.
  const GradientBlock& block() const { return block_; }
  const StepState& state() const { return state_; }
  /// Fills a part of the host's block; both spans as of GradientBlock::array_of.
  engine::Task fetch(std::string name, std::span<float> host, std::span<float> device) const;
  /// Copies the content of an answer (parameters, control block, decay terms, step) to the device.
  engine::Task deliver(std::string name) const;

 private:
  engine::Backend& device_;
  std::span<float> device_control_;
  StepState device_state_;
  GradientBlock block_;
  StepState state_;
  Buffer memory_;  ///< of `state_`
};

}  // namespace cifar_mpi::comm
