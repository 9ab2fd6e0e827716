#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/report/metrics.hpp"
#include "train/state.hpp"

namespace cifar_mpi::train {

/// The event with which a start goes on after `step` steps, where metrics.jsonl had come to `reached` before, and the
/// start before it had ended so.
report::RunEvent start_event(const SessionState& state, std::uint64_t step, std::uint64_t reached,
                             const std::string& last_end);

/// "node1 x 4, node2 x 4", in the order of the ranks; cut where it gets long.
std::string hosts_text(const std::vector<std::string>& hosts);

}  // namespace cifar_mpi::train
