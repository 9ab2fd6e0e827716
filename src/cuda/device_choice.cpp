#include "cuda/device_choice.hpp"

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::cuda {

int choose_device(const DeviceQuestion& question) {
  if (question.visible == 1 || question.local_ranks <= question.visible) {
    return question.visible == 1 ? 0 : question.local_rank;
  }
  if (!question.share) {
    throw Error(ErrorKind::device, question.local_ranks, " ranks on this host, but ",
                counted(question.visible, "GPU"), "; start one rank per GPU (-np ", question.visible,
                " on one host), or let ranks share a GPU for a test with --share-gpus");
  }
  return question.local_rank % question.visible;
}

std::string build_advice(int capability, int toolkit) {
  constexpr int kCuda13 = 13000, kLeastOfCuda13 = 75;
  const char* const with =
      toolkit >= kCuda13 && capability < kLeastOfCuda13
          ? "build with CUDA 12.4 to 12.9, because CUDA 13 has no code for it either, and "
          : "build with ";
  return concat(with, "-DCMAKE_CUDA_ARCHITECTURES=", capability);
}

}  // namespace cifar_mpi::cuda
