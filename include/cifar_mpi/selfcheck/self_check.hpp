#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/comm/heartbeat.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/config/config.hpp"
#include "cifar_mpi/engine/roofline.hpp"
#include "cifar_mpi/step/plan.hpp"

/// Checks a device before a run uses it: compares its training step, on this machine, with its driver and
/// libraries, with that of a trusted backend. Neither backend knows the other.
namespace cifar_mpi::selfcheck {

/// Settings for the check of a device.
struct SelfCheck {
  /// The trusted backend; null: there is none, and checks that need one are skipped.
  comm::PlatformFactory judge;
  /// The run's device if this one fails; null: the run ends with Error{device}, or Error{comm} if the network
  /// failed.
  comm::PlatformFactory instead;
  /// Check again even if the run directory records a failure.
  bool asked_for = false;
  /// Identifies this rank's device, driver and libraries; the text before the first ';' is the name of the
  /// device.
  std::function<std::string(const engine::BackendOptions&)> identity;
  /// The peak rates of this rank's device in a precision; null: its speed is not checked.
  std::function<engine::RooflineLimits(engine::Precision)> measure_limits;
  /// Reports the check's progress, so that a watchdog can end a check that hangs; null: no reports.
  comm::Heartbeat* heart = nullptr;
};

/// The result of the check, the same on all ranks.
struct SelfCheckReport {
  bool good = false;
  std::vector<std::string> table;  ///< a line for each check
  std::vector<std::string>
      faults;  ///< "rank 2 on node3, NVIDIA H200 0000:1b:00.0: ...", each rank's first wrong result
  std::vector<std::string> stops;  ///< what stopped a rank's checks: memory, a busy GPU, the network
  /// Kind of the first of `stops`; comm if the network caused all of them.
  ErrorKind stopped_by = ErrorKind::device;
  std::vector<std::string> no_graph;  ///< for each such rank: how graphs are wrong while all else is right
  std::vector<std::string> refused;   ///< for each such rank: why no graph could be made
  std::vector<std::string> slow;      ///< one line for each slow task
};

/// "node3: NVIDIA H200 ...; driver ...": the devices of all ranks, each once, by host. Collective.
std::string devices_of(const engine::BackendOptions& options, const comm::World& world,
                       const SelfCheck& check);

/// Checks the device that `make_platform` gives, for the network, batch and precision of `config` and the images of
/// `info`, on the ranks of `world`, which are those that compute:
///
///   1  the device can be opened, and kernels can be planned
///   2  fp32 gradients and loss equal the judge's up to rounding
///   3  those of the run's precision err by at most 4 times the error that rounding the weights causes
///   4  three steps give the same bits in line, on lanes, as a graph, and as that graph replayed; if only the graph is
///      wrong or refused, the run uses no graphs, unless it asks for them
///   5  distorted images equal the reference's
///   6  a NaN in the input reaches the loss, so that divergence is detected
///   7  no task takes more than 20 times its roofline time (engine/roofline.hpp) and over 100 µs; slow tasks are named; skipped
///      if ranks may share a GPU
///   8  with several ranks: the run's all-reduce of small integers, in a graph too, is exact on every rank; skipped with
///      servers
///   9  the run's own step over all ranks gives the same bits one by one, with a summary, several in a graph, traced and after
///      a resume; skipped with servers; graphs as in 4
///
/// Collective. The report lists a wrong result as a fault, an error of the device or the network as a stop.
/// Throws AgreedError for options that do not fit each other, as a run would.
SelfCheckReport check_device(const config::TrainConfig& config, const data::DatasetInfo& info,
                             const comm::World& world, const comm::PlatformFactory& make_platform,
                             const SelfCheck& check);

/// Checks without a run, on images of CIFAR-10, and logs the table. Returns 0 if all is well, else the code
/// of Error{device}, or of Error{comm} if the network stopped the check. Collective.
int report_self_check(config::TrainConfig config, const comm::World& world, const Log& log,
                      const comm::PlatformFactory& make_platform, const SelfCheck& check);

/// The platform that a run takes: `asked`, when it proves itself here or has done so before by the record in the run
/// directory; else what `check` has instead. Says why, writes the record, and notes the outcome in `plan`, for
/// checkpoints. `check` null: the device is taken on trust. Collective; throws AgreedError{device} where a device fails
/// and there is nothing instead.
comm::PlatformFactory proven_platform(step::Plan& plan, const comm::PlatformFactory& asked,
                                      const SelfCheck* check);

}  // namespace cifar_mpi::selfcheck
