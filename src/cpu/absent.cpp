#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/cpu/backend.hpp"

namespace cifar_mpi::cpu {

std::string unusable() { return "built without oneDNN"; }

std::string describe() { return "absent (built without oneDNN)"; }

void limit_instructions(InstructionSet) {}

std::unique_ptr<engine::Backend> make_backend(const engine::BackendOptions&) {
  throw Error(
      ErrorKind::device,
      "--device cpu: this binary was built without oneDNN; install it (Debian and Ubuntu: libdnnl-dev) and "
      "build again");
}

}  // namespace cifar_mpi::cpu
