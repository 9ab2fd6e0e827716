#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cifar_mpi::test {

struct ChildResult {
  int exit_code = -1;
  std::string output;  ///< stdout and stderr together
};

/// Runs this test program once more, alone, with the tests that match `filter` (disabled ones, too), and
/// waits for it. Its environment has no trace of the launcher of this process, and `variables` added.
ChildResult run_alone(const std::string& filter,
                      const std::vector<std::pair<std::string, std::string>>& variables);

}  // namespace cifar_mpi::test
