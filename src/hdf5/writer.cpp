#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "hdf5/call.hpp"
#include "hdf5/hdf5.hpp"

namespace cifar_mpi::hdf5 {

/// The memory in which HDF5 builds a file, and which stays when the file is closed.
///
/// H5Fget_file_image would do without this class, but before HDF5 2.0 it spoils the checksum of the
/// superblock (issue 1915 of HDF5), and it needs the memory twice.
class Image {
 public:
  Image() = default;
  ~Image() { std::free(data_); }
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

namespace {

constexpr std::size_t kIncrement = std::size_t{4} << 20;
constexpr std::size_t kEndOfFile = 28;          // in superblocks of version 2 and 3: 8 bytes, little-endian
constexpr std::uint64_t kChunkBytes = 1 << 20;  // also HDF5's default chunk cache
constexpr unsigned kKeptInHeader = 1000;

[[noreturn]] void fail(std::string_view object, std::string_view doing) {
  throw Error(ErrorKind::io, "cannot ", doing, " ", object, " of an HDF5 file in memory: ", reason());
}

void check(herr_t status, std::string_view object, std::string_view doing) {
  if (status < 0) fail(object, doing);
}

Hid check_id(hid_t id, std::string_view object, std::string_view doing) {
  if (id < 0) fail(object, doing);
  return Hid(id);
}

/// A property list for objects without time stamps, whose attributes stay in the header: otherwise HDF5 moves
/// more than eight to a heap, where those above 4 KiB have no checksum.
Hid object_list(hid_t list_class) {
  Hid list = check_id(H5Pcreate(list_class), "a property list", "make");
  check(H5Pset_obj_track_times(list.get(), false), "the time stamps", "turn off");
  check(H5Pset_attr_phase_change(list.get(), kKeptInHeader, 0), "the attributes", "place");
  return list;
}

/// For groups and the file: the members stay in the header too. Otherwise HDF5 puts more than eight into a
/// B-tree, and HDF5 1.10 crashes on one with a flipped byte though it notices the wrong checksum.
Hid group_list(hid_t list_class) {
  Hid list = object_list(list_class);
  check(H5Pset_link_phase_change(list.get(), kKeptInHeader, 0), "the members", "place");
  return list;
}

Hid make_space(const Dims& dims, std::string_view object) {
  const std::vector<hsize_t> extents(dims.begin(), dims.end());
  return check_id(dims.empty() ? H5Screate(H5S_SCALAR)
                               : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                  object, "shape");
}

/// Scalars and empty data sets cannot be chunked and have no checksum.
Hid storage(const Dims& dims, std::size_t element_bytes, std::string_view object) {
  Hid list = object_list(H5P_DATASET_CREATE);
  if (dims.empty() || count(dims) == 0) return list;
  std::vector<hsize_t> chunk(dims.begin(), dims.end());
  const std::uint64_t row_bytes = count(dims) / dims[0] * element_bytes;
  hsize_t rows = 1;
  while (rows * 2 * row_bytes <= kChunkBytes) rows *= 2;
  chunk[0] = std::min(rows, chunk[0]);
  check(H5Pset_chunk(list.get(), static_cast<int>(chunk.size()), chunk.data()), object, "chunk");
  check(H5Pset_fletcher32(list.get()), object, "checksum");
  return list;
}

void put_attribute(hid_t file, std::string_view object, const std::string& name, hid_t type,
                   const void* value) {
  const std::string what = concat("attribute ", name, " of ", object);
  const Hid owner = check_id(H5Oopen(file, std::string(object).c_str(), H5P_DEFAULT), object, "open");
  const Hid space = make_space({}, what);
  const Hid attribute = check_id(
      H5Acreate2(owner.get(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT), what, "make");
  check(H5Awrite(attribute.get(), type, value), what, "write");
}

/// Writes a data set; its groups exist.
void put(hid_t file, std::string_view object, const Dims& dims, hid_t type, const void* values) {
  const Hid space = make_space(dims, object);
  const Hid list = storage(dims, H5Tget_size(type), object);
  const Hid set = check_id(
      H5Dcreate2(file, std::string(object).c_str(), type, space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT),
      object, "make");
  if (count(dims) == 0) return;
  check(H5Dwrite(set.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), object, "write");
}

void make_parents(Writer& writer, std::string_view object) {
  const std::size_t slash = object.rfind('/');
  if (slash == std::string_view::npos) throw std::logic_error("HDF5 objects are named by absolute paths");
  if (slash > 0) writer.group(object.substr(0, slash));
}

}  // namespace

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

Writer::Writer() : image_(std::make_unique<Image>()) {
  const Lock lock;
  start_library();
  const Hid access = check_id(H5Pcreate(H5P_FILE_ACCESS), "a property list", "make");
  image_->attach(access.get());
  const Hid create = group_list(H5P_FILE_CREATE);
  // HDF5 takes two open files of one name for the same file.
  const std::string name = concat("cifar_mpi_in_memory_", static_cast<const void*>(this));
  file_ = check_id(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, create.get(), access.get()), "/", "make");
}

// HDF5 keeps a file open that it cannot close for lack of memory; its memory must then stay, too.
Writer::~Writer() {
  const Lock lock;
  file_.reset();
  if (!image_->closed()) static_cast<void>(image_.release());
}

void Writer::group(std::string_view path) {
  const Lock lock;
  const Hid list = group_list(H5P_GROUP_CREATE);
  for (const std::string& prefix : path_prefixes(path)) {
    const htri_t exists = H5Lexists(file_.get(), prefix.c_str(), H5P_DEFAULT);
    check(exists, prefix, "look for");
    if (exists == 0) {
      check_id(H5Gcreate2(file_.get(), prefix.c_str(), H5P_DEFAULT, list.get(), H5P_DEFAULT), prefix, "make");
    }
  }
}

void Writer::write(std::string_view object, const Dims& dims, Type type, const void* values,
                   std::size_t size) {
  const Lock lock;
  if (count(dims) != size) {
    throw std::logic_error(concat(object, " has dims ", to_string(dims), " but ", size, " values"));
  }
  make_parents(*this, object);
  put(file_.get(), object, dims, memory_type(type), values);
}

void Writer::write_strings(std::string_view object, const std::vector<std::string>& values) {
  const Lock lock;
  make_parents(*this, object);
  std::size_t longest = 0;
  for (const std::string& value : values) longest = std::max(longest, value.size());
  const Hid type = text_type(longest);
  const std::size_t length = H5Tget_size(type.get());
  std::string padded;
  padded.reserve(values.size() * length);
  for (const std::string& value : values) padded.append(value).append(length - value.size(), '\0');
  put(file_.get(), object, {values.size()}, type.get(), padded.data());
}

void Writer::write_attribute(std::string_view object, const std::string& name, Type type, const void* value) {
  const Lock lock;
  put_attribute(file_.get(), object, name, memory_type(type), value);
}

void Writer::write_text(std::string_view object, const std::string& name, std::string_view text) {
  const Lock lock;
  const std::string stored(text.empty() ? std::string_view("\0", 1) : text);
  put_attribute(file_.get(), object, name, text_type(text.size()).get(), stored.data());
}

void Writer::save(const DirectoryEntry& file) {
  {
    const Lock lock;
    check(H5Fclose(file_.release()), "/", "close");
  }
  write_atomically(file, image_->content());
}

}  // namespace cifar_mpi::hdf5
