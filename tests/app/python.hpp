#pragma once

#include <string>

#include "app/command.hpp"

namespace cifar_mpi::test {

/// A Python that has these modules ("h5py, numpy"), or empty: the first one in PATH may be another.
inline std::string python_with(const std::string& modules) {
  for (const std::string python : {"python3", "/usr/bin/python3"}) {
    if (run_command(python + " -c 'import " + modules + "'").code == 0) return python;
  }
  return {};
}

}  // namespace cifar_mpi::test
