#pragma once

#include <span>
#include <string>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::comm {

/// What a worker with a device exchanges, once more in pinned host memory, from which messages are sent and into which
/// they are received; and the tasks that copy between the two.
class HostImage {
 public:
  /// Of the arrays of `parts`, in the memory of `device`, which outlives the tasks.
  HostImage(engine::Backend& device, const StepParts& parts);

  /// The same arrays on the host, and nothing else of a step.
  const StepParts& parts() const { return host_; }
  /// Fills a part of the host's gradients, or control block; both spans as of `array_of`.
  engine::Task fetch(std::string name, std::span<float> host, std::span<float> device) const;
  /// Brings all that an answer has (parameters, control block, decay terms, step) to the device.
  engine::Task deliver(std::string name) const;

 private:
  engine::Backend& device_;
  StepParts device_parts_;  ///< arrays alone, as the next
  StepParts host_;
  Buffer memory_;
};

}  // namespace cifar_mpi::comm
