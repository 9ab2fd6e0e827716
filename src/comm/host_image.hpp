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
  /// For the arrays of `parts`, in the memory of `device`, which must outlive the tasks.
  HostImage(engine::Backend& device, const StepParts& parts);

  /// The same arrays on the host, without tasks.
  const StepParts& parts() const { return host_; }
  /// Fills a part of the host's gradients, or control block; both spans as of `array_of`.
  engine::Task fetch(std::string name, std::span<float> host, std::span<float> device) const;
  /// Copies the content of an answer (parameters, control block, decay terms, step) to the device.
  engine::Task deliver(std::string name) const;

 private:
  engine::Backend& device_;
  StepParts device_parts_;  ///< only arrays, like host_parts_
  StepParts host_;
  Buffer memory_;
};

}  // namespace cifar_mpi::comm
