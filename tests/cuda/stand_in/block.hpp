#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

/// Runs kernels on the processor, one block after another: the threads of a block are fibers that switch at
/// barriers. The order of blocks, and of threads between two barriers, is random, so that a kernel that
/// relies on an order without enforcing it gives varying results.
namespace cifar_mpi::stand_in {

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/// Calls `thread` for each thread of the last `count` blocks in `order`, and removes these. Throws
/// std::runtime_error when blocks are larger than a GPU allows, or threads of one block wait at different
/// barriers. Only one thread at a time may call it.
void run_blocks(const char* kernel, const dim3& blocks, const dim3& threads, std::size_t shared_bytes,
                std::vector<std::uint64_t>& order, std::size_t count, const std::function<void()>& thread);

/// All blocks, in random order.
std::vector<std::uint64_t> draw_blocks(const dim3& blocks);

/// Returns when all threads of the block that have not ended are here.
void barrier(int line);

/// Of the block that runs; begins as 0xFF.
unsigned char* shared_memory();

/// A number below `count`, from a sequence that begins with STAND_IN_SEED of the environment.
std::size_t chance(std::size_t count);

}  // namespace cifar_mpi::stand_in
