#include <array>

#include "cifar_mpi/cuda/backend.hpp"

namespace cifar_mpi::cuda {
namespace {

constexpr std::array kInfos = {
    comm::CollectiveInfo{"nccl", "between the GPUs of --device cuda, where auto takes it"},
    comm::CollectiveInfo{"doubling",
                         "between GPUs NCCL gathers, and each adds in the same tree as on hosts"}};

}  // namespace

std::span<const comm::CollectiveInfo> collectives() { return kInfos; }

}  // namespace cifar_mpi::cuda
