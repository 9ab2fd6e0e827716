#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cpu/dnnl.hpp"

/// Going through the batch in equal pieces inside one task: what is between two kernels stays in the cache,
/// and collectives that are out can move on after every piece.
namespace cifar_mpi::cpu {

/// How many samples a piece has: the largest divisor of `batch` with at most `most` rows per thread, or one sample per thread
/// where that has more; the whole batch when that is below 4 rows per thread, which would not be worth it. `rows` are of a sample,
/// the units in which it is worked on.
int samples_per_piece(int batch, int threads, int rows = 1, int most = 16);

/// Bytes before piece `piece` of a tensor whose pieces are `desc`.
std::size_t offset_of_piece(const Desc& desc, int piece);

/// One task that does what all of `parts` do, in order, and makes progress on the lane after each.
engine::Task in_one(const std::string& name, std::vector<engine::Task> parts);

/// sum += part over `count` floats.
engine::Task add_task(const float* part, float* sum, std::size_t count);

}  // namespace cifar_mpi::cpu
