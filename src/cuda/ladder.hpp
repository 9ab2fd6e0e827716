#pragma once

#include <map>
#include <string>
#include <vector>

#include "cifar_mpi/comm/world.hpp"

namespace cifar_mpi::cuda {

/// How a network's kernels are chosen where the first choice does not run. The choices of a kernel are its rungs: 0 is the
/// first choice, each further one is slower. All ranks take the lowest rung that any of them needs, so that all have the same
/// bits.
class Ladder {
 public:
  /// The rung from which to choose the kernel.
  int start_of(const std::string& kernel) const;
  /// The kernel was chosen on this rung, above 0. `text` says what is taken, why, and what that costs.
  void step_down(const std::string& kernel, int rung, const std::string& text);
  /// The choice of all kernels begins anew.
  void begin() { taken_.clear(); }

  /// Whether the ranks must choose again, from the rungs that others need. Collective.
  bool agree(const comm::World& world);
  /// A line for each kernel that is not the first choice, the same on all ranks after `agree`.
  std::vector<std::string> lines() const;

 private:
  struct Step {
    int rung = 0;
    std::string text;
  };
  std::map<std::string, Step> taken_;   ///< by kernel, since `begin`
  std::map<std::string, Step> agreed_;  ///< by kernel, of all ranks
};

}  // namespace cifar_mpi::cuda
