#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/cuda/backend.hpp"

namespace cifar_mpi::cuda {

std::string describe() { return "absent (built without CUDA)"; }

std::string unusable() { return "built without CUDA"; }

std::unique_ptr<engine::Backend> make_backend(const engine::BackendOptions&) {
  throw Error(ErrorKind::device, "--device cuda: this binary was built without CUDA; use --device cpu");
}

}  // namespace cifar_mpi::cuda
