#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::comm {

/// A way to sum fp32 arrays over all ranks. Chosen by name at start; adding one is a new file and a line in
/// the table.
class Collective {
 public:
  virtual ~Collective() = default;

  /// Begins as in the table; what was resolved follows: "auto (window)", or "window as ring" after `allocate`
  /// has found too little shared memory. Equal names sum in the same order.
  virtual std::string_view name() const = 0;
  /// One sentence for the user when something is not as asked, known after `allocate`; else empty. The same
  /// on all ranks.
  virtual std::string note() const { return {}; }
  /// Over how many ranks is summed. With one there is nothing to sum, and `place` leaves the tasks out.
  virtual int ranks() const = 0;
  /// Zeroed memory, 64-byte aligned, that arrays to be summed must lie in. Every rank must ask for the same
  /// size in the same order, outside World::together, and give it back in one order, before the collective
  /// goes. What fails on one rank is thrown on all (AgreedError).
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// A task for the comm lane that replaces `data` by the sum over all ranks. Every rank must place the same
  /// tasks in the same order, and one task may be in flight at a time. All ranks end with identical bits.
  /// Nothing is allocated per run. `data` may be empty. The task throws Error{comm}; `data` is then
  /// unspecified. The task refers to this collective, which must outlive it. Throws Error{usage} when `data`
  /// is too long for one task, Error{device} without memory.
  virtual engine::Task all_reduce(std::string task_name, std::span<float> data) = 0;
};

/// Names accepted by `make_collective`, each with one sentence on when to use it.
struct CollectiveInfo {
  std::string_view name;
  std::string_view purpose;
};
std::span<const CollectiveInfo> collectives();

/// Throws AgreedError{usage} naming the choices when there is none of that name. `world` must outlive the
/// result. Making one communicates: every rank calls it, outside World::together; what fails on one rank is
/// thrown on all.
std::unique_ptr<Collective> make_collective(std::string_view name, const World& world);

}  // namespace cifar_mpi::comm
