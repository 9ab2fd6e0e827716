#pragma once

#include <string>

#include "app/command.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::test {

/// A Python that has these modules ("h5py, numpy"), or empty: the first one in PATH may be another.
inline std::string python_with(const std::string& modules) {
  for (const std::string python : {"python3", "/usr/bin/python3"}) {
    if (run_command(python + " -c 'import " + modules + "'").code == 0) return python;
  }
  return {};
}

/// The lines between ```python and ``` of a page of the checkout, the first ones that begin with `start`.
inline std::string python_of(const std::string& page, const std::string& start = "") {
  const std::string text = read_file(CIFAR_MPI_SOURCE_ROOT "/" + page), begin = "\n```python\n";
  const std::size_t at = text.find(begin + start);
  if (at == std::string::npos) return {};
  const std::size_t first = at + begin.size();
  return text.substr(first, text.find("\n```\n", first) + 1 - first);
}

}  // namespace cifar_mpi::test
