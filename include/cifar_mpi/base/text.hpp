#pragma once

#include <sstream>
#include <string>

/// Text from values, until std::format is on every supported compiler.
namespace cifar_mpi {

/// All arguments written one after another with `operator<<`.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// `printf` into a string; for numbers with a fixed number of digits.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace cifar_mpi
