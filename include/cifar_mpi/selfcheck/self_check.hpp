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

/// A device proves itself before a run takes it: its training step, on this machine, with its driver and libraries,
/// against a backend that is proven. Neither knows the other.
namespace cifar_mpi::selfcheck {

/// What goes with a device that is not taken on trust.
struct SelfCheck {
  /// The proven backend; null: there is none here, and what needs one is left out.
  comm::PlatformFactory judge;
  /// What the run takes when the device fails; null: it ends with Error{device}, or Error{comm} where the
  /// network is to blame.
  comm::PlatformFactory instead;
  /// Checks again where the run directory has a record of a failure; else that record holds.
  bool asked_for = false;
  /// This rank's device, its driver and libraries, in words that change when one of them does; up to the first ';'
  /// the name of the device.
  std::function<std::string(const engine::BackendOptions&)> identity;
  /// What this rank's device does at most in a precision; null: its speed is not checked.
  std::function<engine::RooflineLimits(engine::Precision)> measure_limits;
  /// Shows where the check is, so that one that hangs is ended; null: nobody looks.
  comm::Heartbeat* heart = nullptr;
};

/// What it came to, the same on all ranks.
struct SelfCheckReport {
  bool good = false;
  std::vector<std::string> table;  ///< a line for each check
  std::vector<std::string>
      faults;  ///< "rank 2 on node3, NVIDIA H200 0000:1b:00.0: ...", of each rank the first wrong result
  std::vector<std::string>
      stops;  ///< likewise what kept a rank from checking on: memory, a busy GPU, the network
  /// What the first of `stops` is: comm where all of them are the network's.
  ErrorKind stopped_by = ErrorKind::device;
  std::vector<std::string> no_graph;  ///< on each such rank: how graphs are wrong while all else is right
  std::vector<std::string> refused;   ///< on each such rank: why no graph could be made
  std::vector<std::string> slow;      ///< one line for each slow task
};

/// "node3: NVIDIA H200 ...; driver ...": the devices of all ranks, each once, by host. Collective.
std::string devices_of(const engine::BackendOptions& options, const comm::World& world,
                       const SelfCheck& check);

/// Checks the device that `make_platform` gives, for the network, batch and precision of `config` and the images of
/// `info`, on the ranks of `world`, which are those that compute:
///
///   1  the device can be opened, and kernels can be planned
///   2  fp32 gradients and loss are those of the judge, but for rounding
///   3  those of the run's precision are no further off than 4 times what weights do that are off by a rounding
///   4  three steps give the same bits in line, on lanes, as a graph, and as that graph once more; where the graph alone is
///      wrong or refused, the device is good for a run without graphs, unless the run asks for them
///   5  distorted images are those of the reference
///   6  a NaN in the input reaches the loss, so that divergence is seen
///   7  no task takes more than 20 times its roofline time (engine/roofline.hpp) and over 100 µs; those that do are named; not
///      where ranks may share a GPU
///   8  with several ranks: the run's all-reduce of small integers, in a graph too, is exact on every rank; not where
///      servers add
///   9  the run's own step over all ranks gives the same bits one by one, with a summary, several in a graph, traced and after a
///      resume; not where servers add; of graphs as in 4
///
/// Collective. A wrong result is a fault in the report, an error of the device or the network a stop; throws AgreedError for
/// options that do not fit each other, as a run would.
SelfCheckReport check_device(const config::TrainConfig& config, const data::DatasetInfo& info,
                             const comm::World& world, const comm::PlatformFactory& make_platform,
                             const SelfCheck& check);

/// Checks by itself, for images of CIFAR-10, and logs the table. 0 when all is good, else the code of Error{device}, or of
/// Error{comm} where the network kept the ranks from checking.
/// Collective.
int report_self_check(config::TrainConfig config, const comm::World& world, const Log& log,
                      const comm::PlatformFactory& make_platform, const SelfCheck& check);

/// The platform that a run takes: `asked`, when it proves itself here or has done so before by the record in the run
/// directory; else what `check` has instead. Says why, writes the record, and notes the outcome in `plan`, for
/// checkpoints. `check` null: the device is taken on trust. Collective; throws AgreedError{device} where a device fails
/// and there is nothing instead.
comm::PlatformFactory proven_platform(step::Plan& plan, const comm::PlatformFactory& asked,
                                      const SelfCheck* check);

}  // namespace cifar_mpi::selfcheck
