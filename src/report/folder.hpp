#pragma once

#include <string>

#include "report/lines.hpp"

/// Folders that what is told of a run is written to.
namespace cifar_mpi::report {

/// The words for `errno`.
std::string last_error();

/// Makes the folder where it is missing; through a link nothing is written. `why` says why not.
Descriptor open_folder(const std::string& path, std::string& why);

}  // namespace cifar_mpi::report
