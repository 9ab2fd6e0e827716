#pragma once

#include <cstdint>
#include <string>

#include "hdf5/call.hpp"
#include "hdf5/hdf5.hpp"
#include "hdf5/read_budget.hpp"

/// Checks of the chunks of a data set in an untrusted file.
namespace cifar_mpi::hdf5 {

/// The filter at a place of the pipeline that a data set was made with.
H5Z_filter_t filter_of(const Hid& made, int place);

/// Whether a filter outputs as many bytes as it reads. With compression, a small file could expand to any
/// number of bytes.
bool keeps_size(H5Z_filter_t filter);

/// Entries [first, first + count) of the first dimension of a data set with these dims.
struct Rows {
  const Dims& dims;
  std::uint64_t first;
  std::uint64_t count;
};
inline Rows all_rows(const Dims& dims) { return {dims, 0, dims.empty() ? 0 : dims[0]}; }

/// Why HDF5 must not read these rows; empty when it may.
///
/// HDF5 takes the length of a chunk with filters from the file and does not compare it with the chunk's dims:
/// for a chunk that is shorter it would return the memory after it, or crash. It also keeps some kB per chunk
/// while it reads, and a file can have a chunk for each of its bytes.
std::string problem_of_chunks(const Hid& set, const Rows& rows, const ReadBudget& budget);

}  // namespace cifar_mpi::hdf5
