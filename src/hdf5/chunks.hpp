#pragma once

#include <cstdint>
#include <string>

#include "hdf5/call.hpp"
#include "hdf5/hdf5.hpp"
#include "hdf5/read_budget.hpp"

/// The chunks into which a data set is cut, in a file that a stranger may have made.
namespace cifar_mpi::hdf5 {

/// The filter at a place of the pipeline that a data set was made with.
H5Z_filter_t filter_of(const Hid& made, int place);

/// Whether a filter gives as many bytes as it is given. Others, which compress, would let a small file
/// announce, and a smaller one than it announces unpack, any number of bytes.
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
/// HDF5 takes the length of a chunk with filters from the file and does not compare it with the chunk's dims: of a chunk
/// that was written shorter it would hand out the memory that follows, or crash. And while it reads it keeps some kB of
/// each chunk, of which a file can have one for each byte.
std::string problem_of_chunks(const Hid& set, const Rows& rows, const ReadBudget& budget);

}  // namespace cifar_mpi::hdf5
