#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/report/efficiencies.hpp"
#include "cifar_mpi/report/timeline.hpp"

namespace cifar_mpi::report {

/// Why a run has no verdict. SampleSchedule (step/step_recording.hpp) chooses the steps.
inline constexpr const char* kNoSample =
    "no step was sampled; train more steps: ten per epoch are sampled, but at most one in ten";

/// Why more ranks are not faster, and what to try.
///
/// The first line is the parallel efficiency and one sentence that names what costs most, with its time in a
/// step: "0.71: ranks wait 8.1 of 52.0 ms for bucket 2 between nodes; …". The gain of an option is replayed
/// from the timeline, with the measured times of tasks and network halved or doubled. Then follows one line
/// for each number, in the order of Efficiencies.
///
/// `efficiencies` must be of this timeline. Without a step there is one line that says so. The last start of the
/// run resumed after `resumed` steps; if none was sampled since, a line says that.
std::vector<std::string> verdict(const Efficiencies& efficiencies, const Timeline& timeline,
                                 std::uint64_t resumed = 0);

}  // namespace cifar_mpi::report
