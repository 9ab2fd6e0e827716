#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/config/config.hpp"
#include "cifar_mpi/selfcheck/self_check.hpp"
#include "cifar_mpi/watch/watchdog.hpp"

namespace cifar_mpi::train {

struct SessionState;

/// Beside engine::Request: this rank asks to stop because its launcher is gone.
inline constexpr int kLauncherGone = 1 << 8;

/// One training run on one rank: the constructor builds and finalizes everything, `run` replays it.
///
/// Every rank makes one with the same configuration, and all calls are collective: an error of one rank
/// during set-up is thrown on all (comm::AgreedError).
class Session {
 public:
  /// Sets the run up, from the newest checkpoint of the run directory if it has one of the same
  /// configuration. `requests` are bits of engine::Request that signal handlers set; the bit for a trace is
  /// cleared when all ranks know of it. `run` is the opened run directory, on rank 0. These and `world` must
  /// outlive the session. With `check` the device must pass a self-check (selfcheck/self_check.hpp). Throws
  /// Error{usage, data, checkpoint, io, device}.
  Session(config::TrainConfig config, const Directory& run, const comm::World& world, const Log& log,
          const comm::PlatformFactory& make_platform, std::atomic<int>& requests,
          const selfcheck::SelfCheck* check = nullptr);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Reports progress to `watchdog`, which must outlive the session. Collective; before `run`.
  void show_to(watch::Watchdog& watchdog);

  /// Trains to the last step, evaluates, and writes a checkpoint. Returns at once if the run is already
  /// finished. Throws, on all ranks at the same step, Error{diverged} (nothing is written after the last good
  /// checkpoint), Error{stopped} (after writing a checkpoint) and Error{io} (a checkpoint could not be
  /// written). `last_end`: how the previous start ended, for metrics.jsonl.
  void run(const std::string& last_end = {});

 private:
  std::unique_ptr<SessionState> state_;
};

}  // namespace cifar_mpi::train
