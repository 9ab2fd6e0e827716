#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cpu/dnnl.hpp"

/// Processing the batch in equal pieces inside one task: data between two kernels stays in the cache, and
/// outstanding collectives can make progress after every piece.
namespace cifar_mpi::cpu {

/// Number of samples in a piece: the largest divisor of `batch` with at most `most` rows per thread, or one
/// sample per thread if that has more; the whole batch if a piece had fewer than 4 rows per thread. `rows` is
/// the number of rows, the units of work, per sample.
int samples_per_piece(int batch, int threads, int rows = 1, int most = 16);

/// Bytes before piece `piece` of a tensor whose pieces are `desc`.
std::size_t offset_of_piece(const Desc& desc, int piece);

/// One task that executes all of `parts` in order and makes progress on the lane after each.
engine::Task in_one(const std::string& name, std::vector<engine::Task> parts);

/// sum += parts[0], parts[1], ..., in this order, over `count` floats; the parts are `stride` floats apart.
engine::Task add_parts_task(const float* parts, std::size_t stride, int number, float* sum,
                            std::size_t count);

}  // namespace cifar_mpi::cpu
