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

/// One training run on one rank: everything is built and finalized on construction, `run` replays it.
///
/// Every rank makes one with the same configuration, and all calls are collective: what goes wrong on one
/// rank during set-up is thrown on all (comm::AgreedError).
class Session {
 public:
  /// Sets the run up, from the newest checkpoint of the run directory where there is one of the same
  /// configuration. `requests` are bits of engine::Request that signal handlers set; that for a
  /// trace is taken back when all ranks know of it. `run` is the opened run directory, on rank 0. These and `world` must
  /// outlive the session.
  /// With `check` the device has to prove itself (train/self_check.hpp).
  /// Throws Error{usage, data, checkpoint, io, device}, see the kinds.
  Session(config::TrainConfig config, const Directory& run, const comm::World& world, const Log& log,
          const comm::PlatformFactory& make_platform, std::atomic<int>& requests,
          const selfcheck::SelfCheck* check = nullptr);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// From now on shows `watchdog`, which must outlive the session, how it gets on. Collective; before `run`.
  void show_to(watch::Watchdog& watchdog);

  /// Trains to the last step, evaluates, and leaves a checkpoint. Returns at once when the run is already
  /// finished. Throws, on all ranks at the same step, Error{diverged} (nothing is written after the last good
  /// checkpoint), Error{stopped} (after writing a checkpoint) and Error{io} (a checkpoint could not be
  /// written). `last_end`: how the start before this one ended, for metrics.jsonl.
  void run(const std::string& last_end = {});

 private:
  std::unique_ptr<SessionState> state_;
};

}  // namespace cifar_mpi::train
