#include "hdf5/hdf5.hpp"

#include <algorithm>
#include <stdexcept>

#include "hdf5/call.hpp"

namespace cifar_mpi::hdf5 {
namespace {

extern "C" herr_t take_first_message(unsigned, const H5E_error2_t* error, void* text) {
  if (error->desc != nullptr && *error->desc != '\0') *static_cast<std::string*>(text) = error->desc;
  return 1;  // ends the walk
}

bool is_any_of(hid_t type, hid_t a, hid_t b) { return H5Tequal(type, a) > 0 || H5Tequal(type, b) > 0; }

}  // namespace

std::recursive_mutex& Lock::mutex() {
  static std::recursive_mutex library;
  return library;
}

// An identifier of any kind is closed with its last reference. Files are open for reading or live in memory,
// so only a lack of memory makes that fail; ~Writer sees to it.
void close_id(Id id) {
  const Lock lock;
  H5Idec_ref(id);
}

void start_library() {
  H5dont_atexit();  // refuses when it has been called before, which is as good
  H5PLset_loading_state(0);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string reason() {
  std::string text = "unknown error";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first_message, &text);
  return text;
}

hid_t memory_type(Type type) {
  switch (type) {
    case Type::uint8:
      return H5T_NATIVE_UINT8;
    case Type::int64:
      return H5T_NATIVE_INT64;
    case Type::uint64:
      return H5T_NATIVE_UINT64;
    case Type::float32:
      return H5T_NATIVE_FLOAT;
    case Type::float64:
      return H5T_NATIVE_DOUBLE;
    case Type::text:
    case Type::other:
      break;
  }
  throw std::logic_error("no fixed memory type");
}

Hid text_type(std::size_t length) {
  Hid type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), std::max<std::size_t>(length, 1));  // HDF5 knows no type of 0 bytes
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

bool is_whole_number(hid_t type) {
  const std::size_t size = H5Tget_size(type);
  return H5Tget_class(type) == H5T_INTEGER && H5Tget_precision(type) == 8 * size && size <= 8;
}

Type classify(hid_t type) {
  const std::size_t size = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_INTEGER: {
      if (!is_whole_number(type)) return Type::other;
      const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
      if (size == 1 && !is_signed) return Type::uint8;
      if (size == 8) return is_signed ? Type::int64 : Type::uint64;
      return Type::other;
    }
    case H5T_FLOAT:
      if (is_any_of(type, H5T_IEEE_F32LE, H5T_IEEE_F32BE)) return Type::float32;
      return is_any_of(type, H5T_IEEE_F64LE, H5T_IEEE_F64BE) ? Type::float64 : Type::other;
    case H5T_STRING:
      return Type::text;
    default:
      return Type::other;
  }
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (const std::uint64_t d : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(d);
  return text + "]";
}

std::uint64_t count(const Dims& dims) {
  std::uint64_t n = 1;
  for (const std::uint64_t d : dims) n *= d;
  return n;
}

std::vector<std::string> path_prefixes(std::string_view path) {
  std::vector<std::string> prefixes;
  for (std::size_t end = 1; end < path.size();) {
    end = path.find('/', end);
    if (end == std::string_view::npos) end = path.size();
    prefixes.emplace_back(path.substr(0, end));
    ++end;
  }
  return prefixes;
}

}  // namespace cifar_mpi::hdf5
