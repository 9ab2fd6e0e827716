#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cifar_mpi::test {

struct ChildResult {
  int exit_code = -1;
  std::string output;  ///< stdout and stderr together
};

/// Runs this test program again as a single process, with the tests that match `filter` (including disabled
/// ones), and waits for it. Its environment lacks all variables of the launcher, and has `variables` added.
ChildResult run_alone(const std::string& filter,
                      const std::vector<std::pair<std::string, std::string>>& variables);

}  // namespace cifar_mpi::test
