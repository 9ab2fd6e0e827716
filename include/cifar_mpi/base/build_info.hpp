#pragma once

#include <string_view>

/// What this binary was built from; fixed when CMake configures.
namespace cifar_mpi {

std::string_view version();       ///< that of CMakeLists.txt
std::string_view git_revision();  ///< `git describe --always --dirty`, or "unknown" outside a checkout
std::string_view build_type();    ///< "Release", "Debug", ...
std::string_view compiler();      ///< "GNU 12.2.0"

}  // namespace cifar_mpi
