#include "hdf5/image.hpp"

#include <cstdlib>

#include "hdf5/call.hpp"

namespace cifar_mpi::hdf5 {
namespace {

constexpr std::size_t kIncrement = std::size_t{4} << 20;
constexpr std::size_t kEndOfFile = 28;  // in superblocks of version 2 and 3: 8 bytes, little-endian

}  // namespace

Image::~Image() { std::free(data_); }

void Image::attach(Id access_list) {
  H5FD_file_image_callbacks_t callbacks{};
  callbacks.image_realloc = [](void* memory, std::size_t size, H5FD_file_image_op_t, void* owner) -> void* {
    void* resized = std::realloc(memory, size);
    if (resized == nullptr) return nullptr;
    auto* image = static_cast<Image*>(owner);
    image->data_ = static_cast<std::byte*>(resized);
    image->size_ = size;
    return resized;
  };
  callbacks.image_free = [](void*, H5FD_file_image_op_t operation, void* owner) -> herr_t {
    if (operation == H5FD_FILE_IMAGE_OP_FILE_CLOSE) static_cast<Image*>(owner)->closed_ = true;
    return 0;
  };
  callbacks.udata_copy = [](void* owner) { return owner; };
  callbacks.udata_free = [](void*) -> herr_t { return 0; };
  callbacks.udata = this;
  if (H5Pset_fapl_core(access_list, kIncrement, false) < 0 ||
      H5Pset_file_image_callbacks(access_list, &callbacks) < 0 ||
      // From 1.10 on: checksums in superblock, object headers and chunk indices.
      H5Pset_libver_bounds(access_list, H5F_LIBVER_V110, H5F_LIBVER_LATEST) < 0) {
    throw Error(ErrorKind::io, "cannot make an HDF5 file in memory: " + reason());
  }
}

std::span<const std::byte> Image::content() const {
  std::uint64_t end = 0;
  if (!closed_ || size_ < kEndOfFile + 8)
    throw Error(ErrorKind::io, "an HDF5 file in memory is empty or still open");
  for (std::size_t i = 0; i < 8; ++i) {
    end |= std::uint64_t{std::to_integer<std::uint8_t>(data_[kEndOfFile + i])} << (8 * i);
  }
  if (end > size_) throw Error(ErrorKind::io, "an HDF5 file in memory ends past its memory");
  return {data_, end};
}

}  // namespace cifar_mpi::hdf5
