#include <array>

#include "cifar_mpi/cuda/backend.hpp"

namespace cifar_mpi::cuda {
namespace {

constexpr std::array kInfos = {
    comm::CollectiveInfo{.name = "nccl", .purpose = "between the GPUs of --device cuda, where auto takes it"},
    comm::CollectiveInfo{.name = "doubling",
                         .purpose = "between GPUs NCCL gathers, and each adds in the same tree as on hosts",
                         .fixed_tree = true}};

}  // namespace

std::span<const comm::CollectiveInfo> collectives() { return kInfos; }

}  // namespace cifar_mpi::cuda
