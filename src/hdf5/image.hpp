#pragma once

#include <cstddef>
#include <span>

#include "hdf5/hdf5.hpp"

namespace cifar_mpi::hdf5 {

/// The memory in which HDF5 builds a file, and which stays when the file is closed.
///
/// H5Fget_file_image would do without this class, but before HDF5 2.0 it spoils the checksum of the
/// superblock (issue 1915 of HDF5), and it needs the memory twice.
class Image {
 public:
  Image() = default;
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  /// Makes files opened with this access list live here; one file only, and this object must outlive it.
  void attach(Id access_list);

  /// The bytes of the file, once it is closed.
  std::span<const std::byte> content() const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace cifar_mpi::hdf5
