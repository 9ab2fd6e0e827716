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
  /// HDF5 may keep it open when it could not be closed.
  void attach(Id access_list);

  /// HDF5 has let go of the file.
  bool closed() const { return closed_; }

  /// The bytes of the file, once it is closed.
  std::span<const std::byte> content() const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool closed_ = false;
};

}  // namespace cifar_mpi::hdf5
