#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/handle.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/names.hpp"
#include "hdf5/read_budget.hpp"

/// The few HDF5 calls this project needs, checked; works with HDF5 1.10.7 and later, 1.12 and 1.14.
///
/// HDF5's own error printing is turned off; its innermost message becomes part of ours. The library's usual
/// build is not thread-safe: the calls here are serialized, so different threads may use different files.
/// Objects are named by absolute paths, "/train/images"; "/" is the root group.
namespace cifar_mpi::hdf5 {

using Id = std::int64_t;  ///< hid_t, so that this header needs no HDF5
void close_id(Id id);
using Hid = Handle<Id, close_id, Id{-1}>;

/// What a data set holds, whatever its byte order.
enum class Type : std::uint8_t { uint8, int64, uint64, float32, float64, text, other };
constexpr auto names_of(Type) {
  return std::to_array<Name<Type>>({{"uint8", Type::uint8},
                                    {"int64", Type::int64},
                                    {"uint64", Type::uint64},
                                    {"float32", Type::float32},
                                    {"float64", Type::float64},
                                    {"text", Type::text},
                                    {"another type", Type::other}});
}
using cifar_mpi::to_string;

template <class T>
constexpr Type type_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return Type::uint8;
  if constexpr (std::is_same_v<T, std::int64_t>) return Type::int64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return Type::uint64;
  if constexpr (std::is_same_v<T, float>) return Type::float32;
  if constexpr (std::is_same_v<T, double>) return Type::float64;
  return Type::other;
}
template <class T>
concept Element = type_of<T>()
!= Type::other;

using Dims = std::vector<std::uint64_t>;  ///< outermost first; empty for a scalar
std::string to_string(const Dims& dims);
std::uint64_t count(const Dims& dims);

/// A file open for reading, without file locking (parallel file systems refuse locks). It must not change
/// meanwhile.
///
/// The file is untrusted: nothing outside it is read. Soft and external links, external storage and
/// virtual data sets, which all name other files or places, are refused. Memory is allocated only for data
/// that the file contains. Compressed data sets are therefore refused, and so is text of variable length:
/// many texts may share one place, and HDF5 does not check their lengths. An object may have several names
/// (hard links); what is read through any of them counts against the file's one `ReadBudget`, each time.
///
/// Everything throws Error{kind} that names the file, the object and HDF5's reason.
class Reader {
 public:
  /// `kind` of the errors: data or checkpoint. Throws when the file is missing, not HDF5 or truncated. `file`
  /// need not outlive this call.
  explicit Reader(const InputFile& file, ErrorKind kind = ErrorKind::data);

  const std::string& path() const { return path_; }

  /// Counts `count` times `bytes` of memory against the file's budget; callers do so before they allocate
  /// more for `object` than the functions below return. Throws when the budget is exhausted.
  void charge(std::string_view object, std::uint64_t count, std::uint64_t bytes = 1) const;

  bool has(std::string_view object) const;
  bool is_group(std::string_view object) const;
  /// Names of the members of a group, sorted; 65536 at most. Charges for the path of each and for what a
  /// caller makes of it, so that a walk through groups that contain themselves ends.
  std::vector<std::string> members(std::string_view group) const;

  Type type(std::string_view object) const;
  /// Throws when the file holds too few bytes for them.
  Dims dims(std::string_view object) const;

  /// A whole data set, row major. Its type must be T; `values` must have its size. A wrong checksum throws.
  template <Element T>
  void read(std::string_view object, std::span<T> values) const {
    read_whole(object, type_of<T>(), values.data(), values.size());
  }
  template <Element T>
  std::vector<T> read(std::string_view object) const {
    const std::uint64_t size = count(dims(object));
    charge(object, size, sizeof(T));
    std::vector<T> values(size);
    read(object, std::span<T>(values));
    return values;
  }
  /// Entries [first, first + rows) of the first dimension; `values` must have their size.
  template <Element T>
  void read_rows(std::string_view object, std::uint64_t first, std::uint64_t rows,
                 std::span<T> values) const {
    read_rows(object, type_of<T>(), first, rows, values.data(), values.size());
  }
  /// A list of strings of fixed length. Throws when there are more than `most`.
  std::vector<std::string> read_strings(std::string_view object, std::uint64_t most = 1 << 16) const;

  bool has_attribute(std::string_view object, const std::string& name) const;
  /// T is bool, std::int64_t, std::uint64_t, double or std::string. Integers must fit T.
  template <class T>
  T attribute(std::string_view object, const std::string& name) const;
  /// Whether the root attribute `format` says this.
  bool has_format(std::string_view format) const;

 private:
  /// Empty if there is no such object. Unless `open`, returns the group of the object.
  Hid find(std::string_view object, bool open) const;
  Hid open_object(std::string_view object) const;
  Hid open_dataset(std::string_view object) const;
  Dims dims(const Hid& set, std::string_view object) const;
  void require_text(std::string_view object, Id type) const;
  Hid open_attribute(const Hid& object, std::string_view object_name, const std::string& name) const;
  void read_whole(std::string_view object, Type type, void* values, std::size_t size) const;
  void read_rows(std::string_view object, Type type, std::uint64_t first, std::uint64_t rows, void* values,
                 std::size_t size) const;
  [[noreturn]] void fail(std::string_view object, std::string_view text) const;
  [[noreturn]] void fail_budget(std::string_view object) const;
  [[noreturn]] void fail_hdf5(std::string_view object, std::string_view doing) const;

  std::string path_;
  ErrorKind kind_;
  Hid file_;
  std::uint64_t capacity_ = 0;  ///< the most bytes that all objects together can have
  mutable ReadBudget budget_;
};

/// Opens a file that this program wrote into a run directory; it must not be a link and must have this
/// `format` and `version` (root attributes of these names). Throws Error{checkpoint} otherwise.
Reader open_record(const DirectoryEntry& file, const std::string& format, std::int64_t version);

/// As the function of base of this name, for a file with this `format`.
void require_like_or_nothing(const InputFile& file, std::string_view format, std::string_view what,
                             std::string_view option);

class Image;

/// Builds a file in memory and writes it in one go.
///
/// HDF5 never writes to the disk itself: after a failed write (disk full) its H5Fclose fails too, keeps the
/// file open and tries again at exit. Here only `save` meets the disk. The price is memory: the size of the
/// file. Data sets are cut into chunks of a power of two of rows, as many as fit 1 MiB but at least one, each
/// with a Fletcher32 checksum; headers, attributes and chunk indices have checksums too. Only text attributes
/// of 64 KiB and more have none: they do not fit a header. Text is stored with a fixed length in UTF-8,
/// because HDF5 keeps text of variable length without checksum, and a flipped byte there makes it crash. No
/// time stamps: equal content gives equal bytes. Missing parent groups are made. Everything throws Error{io}.
class Writer {
 public:
  Writer();
  /// Begins with the root attributes `format` and `version`.
  Writer(std::string_view format, std::int64_t version) : Writer() {
    attribute("/", "format", format);
    attribute("/", "version", version);
  }
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Makes a group and its parents; no error when it exists.
  void group(std::string_view path);

  /// `values` has as many elements as `dims` says. The object must not exist.
  template <Element T>
  void write(std::string_view object, const Dims& dims, std::span<const T> values) {
    write(object, dims, type_of<T>(), values.data(), values.size());
  }
  template <Element T>
  void write(std::string_view object, const Dims& dims, const std::vector<T>& values) {
    write(object, dims, std::span<const T>(values));
  }
  /// A list of strings, each padded with zeros to the longest.
  void write_strings(std::string_view object, const std::vector<std::string>& values);

  /// A scalar attribute of a group or data set: bool (as 0 or 1), an integer (64 bits), a floating-point
  /// number (double) or text of any length.
  template <class T>
  void attribute(std::string_view object, const std::string& name, const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const std::uint8_t stored = value ? 1 : 0;
      write_attribute(object, name, Type::uint8, &stored);
    } else if constexpr (std::is_integral_v<T>) {
      const std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t> stored = value;
      write_attribute(object, name, type_of<std::remove_const_t<decltype(stored)>>(), &stored);
    } else if constexpr (std::is_floating_point_v<T>) {
      const double stored = value;
      write_attribute(object, name, Type::float64, &stored);
    } else {
      write_text(object, name, value);
    }
  }

  /// Writes the file as `write_atomically` does: `file` is afterwards complete or what it was before. Nothing
  /// can be added to it after that.
  void save(const DirectoryEntry& file);

 private:
  void write(std::string_view object, const Dims& dims, Type type, const void* values, std::size_t size);
  void write_attribute(std::string_view object, const std::string& name, Type type, const void* value);
  void write_text(std::string_view object, const std::string& name, std::string_view text);

  std::unique_ptr<Image> image_;  ///< outlives file_, which lives in it
  Hid file_;
};

}  // namespace cifar_mpi::hdf5
