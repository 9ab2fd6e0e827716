#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/report/timeline.hpp"
#include "cifar_mpi/report/verdict.hpp"

namespace cifar_mpi::report {

/// The time of a step by section: a line for each with minimum, mean and maximum over the ranks, and its
/// share, like the table at the end of a LAMMPS run. Empty without a step.
std::vector<std::string> budget_table(const Timeline& timeline);

/// The summary at the end of a run: the table and the verdict of RUN_DIR/timeline.h5, and the commands that open the
/// files of the run directory. If the timeline cannot be read, a line says why; if it does not exist, `why_none`.
/// `resumed` as for the verdict.
std::vector<std::string> run_summary(const Directory& run, std::string_view why_none = kNoSample,
                                     std::uint64_t resumed = 0);

}  // namespace cifar_mpi::report
