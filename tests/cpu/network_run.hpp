#pragma once

#include <memory>
#include <utility>

#include "cifar_mpi/cpu/backend.hpp"
#include "support/network_run.hpp"

namespace cifar_mpi::cpu {

using reference::relative_distance;
using reference::relative_tolerance;
using test::RunSpec;

struct OwnBackend {
  std::unique_ptr<engine::Backend> own;
};

/// A network on its own backend, in host memory.
class NetworkRun : private OwnBackend, public test::NetworkRun {
 public:
  explicit NetworkRun(RunSpec asked)
      : OwnBackend{make_backend({asked.threads, false})}, test::NetworkRun(*own, std::move(asked)) {
    set_step(3);
  }
};

}  // namespace cifar_mpi::cpu
