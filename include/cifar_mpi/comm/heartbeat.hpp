#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/progress_counter.hpp"

/// Signs of life of every rank of a node, in memory that all of them read.
namespace cifar_mpi::comm {

class SharedFile;

/// The activity of a rank. Watching for a new checkpoint and measuring have no time limit; checking is the
/// self-check of a device.
enum class Activity : std::uint32_t {
  starting,
  checking,
  training,
  evaluating,
  saving,
  watching,
  measuring,
  leaving
};

/// The checks of a device, in order. Those from `all_reduce` on are collective.
enum class DeviceCheck : std::uint64_t {
  device = 1,
  fp32_gradients,
  run_gradients,
  runners,
  images,
  divergence,
  speed,
  all_reduce,
  training
};
constexpr auto names_of(DeviceCheck) {
  return std::to_array<Name<DeviceCheck>>({{"device and kernels", DeviceCheck::device},
                                           {"gradients, fp32", DeviceCheck::fp32_gradients},
                                           {"gradients, precision of the run", DeviceCheck::run_gradients},
                                           {"runners", DeviceCheck::runners},
                                           {"distorted images", DeviceCheck::images},
                                           {"divergence", DeviceCheck::divergence},
                                           {"speed", DeviceCheck::speed},
                                           {"all-reduce", DeviceCheck::all_reduce},
                                           {"training", DeviceCheck::training}});
}

/// One rank's signs of life. The rank's own threads write it, every process of the node reads it; all with
/// relaxed order, because no other data depends on them. It has its own cache lines.
struct alignas(128) Heartbeat {
  std::atomic<std::int32_t> rank{0};
  std::atomic<bool> spare{false};  ///< the others train on without this rank, until all of them meet
  std::atomic<bool> logs{false};   ///< it is writing a line of its log, which may wait for a reader
  std::atomic<Activity> activity{Activity::starting};
  /// Completed steps; while checking: the DeviceCheck, 0: the rank waits for the others.
  std::atomic<std::uint64_t> step{0};
  std::atomic<std::uint64_t> ticks{0};  ///< of the watchdog's thread: grows while the process runs
  engine::ProgressCounter progress;     ///< of the runners: grows while the rank makes progress
};

/// The heartbeats of this rank's node.
class Heartbeats {
 public:
  /// Collective. If the node has no shared memory left, each rank sees only itself, and `ranks` is 1.
  explicit Heartbeats(const World& world);
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  int ranks() const;
  int self() const;  ///< this rank's place among them
  Heartbeat& mine() const { return of(self()); }
  Heartbeat& of(int place) const;
  int pid(int place) const;
  /// True if that process has ended. False if that is unknown (another container, kernels before 5.3).
  bool gone(int place) const;
  /// True for the first caller on the node, so that one rank reports for all.
  bool elect_reporter() const;

 private:
  const World& world_;
  std::unique_ptr<SharedFile> shared_;
  Buffer own_;  ///< if no memory can be shared
  std::byte* memory_ = nullptr;
  bool alone_ = false;
};

}  // namespace cifar_mpi::comm
