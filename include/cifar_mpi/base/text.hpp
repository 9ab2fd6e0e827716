#pragma once

#include <sstream>
#include <string>

/// Text from values. Where a number has a fixed number of digits, fmt::format writes it.
namespace cifar_mpi {

/// All arguments written one after another with `operator<<`.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

}  // namespace cifar_mpi
