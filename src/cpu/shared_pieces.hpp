#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cpu/dnnl.hpp"

/// Pieces of the batch that the threads of a rank compute at the same time, each with a oneDNN kernel that is
/// planned for one thread.
///
/// A kernel planned for several threads ends with barriers at which threads spin. Where two of them compute
/// the weight gradient of 3x3 kernels in bf16, this takes two to three times as long as two ranks of one
/// thread; beside other processes, a thread that has lost its core makes the others spin for seconds.
namespace cifar_mpi::cpu {

/// Number of samples in such a piece: the largest divisor of `batch` from 4 to 16, or to a quarter of a
/// thread's share where that is more, with which the busiest thread has at most 1.15 times its share. 0:
/// there is none, or only one thread, and a kernel uses all threads instead.
int samples_per_shared_piece(int batch, int threads);

/// Activations of `samples` of the samples that `whole` describes; the batch must be its outermost dimension.
Desc piece_of(const Desc& whole, int samples);

/// Memory of the kernel for all threads of the rank.
std::size_t shared_scratch_bytes(const Kernel& kernel, int threads);

/// The task that runs `kernel`, which is planned for one thread, once for each list of operands, in any
/// order, on `threads` threads at once. Kernels write different memory; scratch is
/// [shared_scratch_bytes(kernel, threads)]. The lane makes progress after each piece of the calling thread.
engine::Task shared_kernel_task(std::string name, const Dnnl& dnnl, const Kernel& kernel,
                                const std::vector<std::vector<Operand>>& pieces, int threads,
                                std::byte* scratch);

/// Calls run(piece, thread, progress) for each of `pieces` pieces, in any order, on the threads of the rank;
/// with one piece on the calling thread alone. `progress` makes progress on the lane if it is called on that
/// thread. An error is thrown when all pieces are done.
using RunPiece = std::function<void(std::ptrdiff_t piece, int thread, const std::function<void()>& progress)>;
void run_pieces(engine::Lane& lane, std::ptrdiff_t pieces, const RunPiece& run);

}  // namespace cifar_mpi::cpu
