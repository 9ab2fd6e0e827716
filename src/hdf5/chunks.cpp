#include "hdf5/chunks.hpp"

#include <vector>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::hdf5 {
namespace {

constexpr std::uint64_t kKeptBytes = 4096;  // of each chunk while HDF5 reads: 3.8 kB in version 1.10
constexpr std::uint64_t kSumBytes = 4;      // that Fletcher32 adds to a chunk

/// Bytes of a whole chunk as the filters leave it.
std::uint64_t stored_bytes(const Hid& set, const Hid& made, const std::vector<hsize_t>& chunk) {
  const Hid type(H5Dget_type(set.get()));
  std::uint64_t bytes = H5Tget_size(type.get());
  for (const hsize_t extent : chunk) bytes *= extent;  // HDF5 makes no chunk of 4 GiB or more
  for (int i = 0; i < H5Pget_nfilters(made.get()); ++i)
    bytes += filter_of(made, i) == H5Z_FILTER_FLETCHER32 ? kSumBytes : 0;
  return bytes;
}

}  // namespace

H5Z_filter_t filter_of(const Hid& made, int place) {
  std::size_t values = 0;
  return H5Pget_filter(made.get(), static_cast<unsigned>(place), nullptr, &values, nullptr, 0, nullptr,
                       nullptr);
}

bool keeps_size(H5Z_filter_t filter) {
  return filter == H5Z_FILTER_FLETCHER32 || filter == H5Z_FILTER_SHUFFLE;
}

std::string problem_of_chunks(const Hid& set, const Rows& rows, const ReadBudget& budget) {
  const Dims& dims = rows.dims;
  const Hid made(H5Dget_create_plist(set.get()));
  if (H5Pget_layout(made.get()) != H5D_CHUNKED || rows.count * count(dims) == 0) return {};
  std::vector<hsize_t> chunk(dims.size()), at(dims.size(), 0);
  if (H5Pget_chunk(made.get(), static_cast<int>(chunk.size()), chunk.data()) < 0)
    return concat("its chunks are damaged (", reason(), ")");
  at[0] = rows.first - rows.first % chunk[0];
  std::uint64_t chunks = (rows.first + rows.count - 1) / chunk[0] - rows.first / chunk[0] + 1;
  for (std::size_t d = 1; d < dims.size(); ++d) chunks *= (dims[d] + chunk[d] - 1) / chunk[d];
  if (!budget.covers(chunks, kKeptBytes)) {
    return concat("it is cut into ", chunks, " chunks, which take more memory to read than ",
                  ReadBudget::kTimesTheFile,
                  " times the file's size and 64 MB; cut it into larger ones with h5repack -l");
  }
  if (H5Pget_nfilters(made.get()) == 0) return {};
  const std::uint64_t expected = stored_bytes(set, made, chunk);
  for (; chunks > 0; --chunks) {
    hsize_t stored = 0;
    if (H5Dget_chunk_storage_size(set.get(), at.data(), &stored) < 0) stored = 0;  // there is none
    if (stored < expected) {
      return concat("a chunk of it has ", stored, " of ", expected,
                    " bytes; the file is damaged or was never filled");
    }
    for (std::size_t d = dims.size(); d-- > 0;) {
      at[d] += chunk[d];
      if (d == 0 || at[d] < dims[d]) break;
      at[d] = 0;
    }
  }
  return {};
}

}  // namespace cifar_mpi::hdf5
