#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/report/timeline.hpp"

namespace cifar_mpi::report {

/// Where the time of a step goes: a line for each section with least, mean and greatest over the ranks, and its share,
/// as LAMMPS ends its runs. Empty without a step.
std::vector<std::string> budget_table(const Timeline& timeline);

/// What a run says at its end: the table and the verdict of RUN_DIR/timeline.h5, and the commands that open what lies
/// in the run directory. What cannot be read is said in its place, and where there is no such file what says why.
std::vector<std::string> run_summary(const Directory& run, std::string_view why_none = "no step was sampled");

}  // namespace cifar_mpi::report
