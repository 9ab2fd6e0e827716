#include "cuda/device_choice.hpp"

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::cuda {

int choose_device(const DeviceQuestion& question) {
  if (question.visible == 1 || question.local_ranks <= question.visible) {
    return question.visible == 1 ? 0 : question.local_rank;
  }
  if (!question.share) {
    throw Error(
        ErrorKind::device,
        concat(question.local_ranks, " ranks on this host, but ", question.visible,
               " GPUs; start at most one rank per GPU, or allow sharing for a test with --share-gpus"));
  }
  return question.local_rank % question.visible;
}

}  // namespace cifar_mpi::cuda
