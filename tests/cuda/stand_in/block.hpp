#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

/// Runs kernels on the processor, one block after another: the threads of a block are contexts that change
/// places at barriers. The order of blocks, and of threads between two barriers, is drawn by chance, so that
/// a kernel that needs an order it does not make gives different results.
namespace cifar_mpi::stand_in {

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/// Calls `thread` for each thread of blocks of a grid, those that are numbered in `order`, as many as `count`
/// says from its end, and takes these away. Throws std::runtime_error when blocks are larger than a GPU
/// takes, or threads of one block wait at different barriers. Belongs on one thread of the process.
void run_blocks(const char* kernel, const dim3& blocks, const dim3& threads, std::size_t shared_bytes,
                std::vector<std::uint64_t>& order, std::size_t count, const std::function<void()>& thread);

/// All blocks, in an order drawn by chance.
std::vector<std::uint64_t> draw_blocks(const dim3& blocks);

/// Returns when all threads of the block that have not ended are here.
void barrier(int line);

/// Of the block that runs; begins as 0xFF.
unsigned char* shared_memory();

/// A number below `count`, from a sequence that begins with STAND_IN_SEED of the environment.
std::size_t chance(std::size_t count);

}  // namespace cifar_mpi::stand_in
