#include "app/waiting.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace cifar_mpi::app {

void limit_spinning(char** argv) {
  constexpr const char* kVariable = "GOMP_SPINCOUNT";
  constexpr const char* kSpins = "1000";  // 15 to 50 microseconds
  if (std::getenv(kVariable) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (::setenv(kVariable, kSpins, 1) != 0) return;
  std::fflush(nullptr);
  ::execv("/proc/self/exe", argv);
  // Without /proc the run continues, but is slower beside other programs.
}

}  // namespace cifar_mpi::app
