#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "hdf5/call.hpp"
#include "hdf5/chunks.hpp"
#include "hdf5/hdf5.hpp"

namespace cifar_mpi::hdf5 {
namespace {

constexpr hsize_t kMostMembers = 1 << 16;
/// Charged for each member of a group that is listed, in addition to its path. This is more than a caller keeps of one
/// (a tensor with its name, a series), because to look at a member takes time, too: a walk through groups that contain
/// themselves ends after about 8000 members and one more for each KiB of the file.
constexpr std::uint64_t kMemberBytes = 8192;

/// Says what is wrong with a file before HDF5 sees it; empty when it begins as an HDF5 file does.
std::string first_look(const InputFile& file) {
  if (!file.problem().empty()) return file.problem();
  char head[8] = {};
  const ssize_t size = ::pread(file.descriptor(), head, sizeof(head), 0);
  if (size < 0) return last_error();
  if (size == 0) return "the file is empty";
  if (std::string_view(head, static_cast<std::size_t>(size)) != std::string_view("\x89HDF\r\n\x1a\n", 8))
    return "it is not an HDF5 file";
  return {};
}

/// The name under which HDF5, which takes no descriptors, opens the file that was checked, even if its path
/// has changed since. HDF5 then has a descriptor of its own.
std::string name_of_opened(const InputFile& file) { return concat("/proc/self/fd/", file.descriptor()); }

Dims dims_of(hid_t space) {
  const int rank = H5Sget_simple_extent_ndims(space);
  std::vector<hsize_t> extents(rank > 0 ? static_cast<std::size_t>(rank) : 0);
  if (rank > 0) H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  return {extents.begin(), extents.end()};
}

/// The most bytes that an object of the file can have: those of the file. That is little for a file of holes, whatever
/// its length. The margin is for file systems that compress, or that have not yet counted recent writes.
std::uint64_t capacity_of(const InputFile& file, std::uint64_t length) {
  constexpr std::uint64_t kUncounted = 1 << 20, kMostShrinking = 64, kBlock = 512;
  struct stat found {};
  if (::fstat(file.descriptor(), &found) != 0) return 0;
  return std::min(length,
                  kMostShrinking * (static_cast<std::uint64_t>(found.st_blocks) * kBlock + kUncounted));
}

/// True when `bytes` bytes hold `dims` elements.
bool holds(std::uint64_t bytes, const Dims& dims, std::size_t element_bytes) {
  if (std::ranges::find(dims, 0u) != dims.end()) return true;
  std::uint64_t needed = element_bytes;
  for (const std::uint64_t d : dims) {
    if (__builtin_mul_overflow(needed, d, &needed)) return false;
  }
  return needed <= bytes;
}

/// What `read_text` needs for each string.
std::uint64_t text_bytes(hid_t stored) { return 2 * H5Tget_size(stored) + sizeof(std::string); }

/// Reads `size` strings of fixed length through `read(memory type, destination)`; false when that fails.
template <class Read>
bool read_text(hid_t stored, std::vector<std::string>& values, Read read) {
  if (values.empty()) return true;
  const std::size_t length = H5Tget_size(stored);
  std::vector<char> characters(values.size() * length);
  if (!read(stored, characters.data())) return false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string_view padded(characters.data() + i * length, length);
    values[i] = padded.substr(0, padded.find('\0'));
    if (H5Tget_strpad(stored) == H5T_STR_SPACEPAD) values[i].erase(values[i].find_last_not_of(' ') + 1);
  }
  return true;
}

/// The names of a group's members, as far as they fit into the budget.
struct Listing {
  std::vector<std::string> names;
  ReadBudget& budget;
  bool fits = true;
};

extern "C" herr_t note_member(hid_t, const char* name, const H5L_info_t*, void* to) {
  Listing& listing = *static_cast<Listing*>(to);
  const std::string_view text = name;
  listing.fits = listing.budget.take(text.size(), 2);
  if (listing.fits) listing.names.emplace_back(text);
  return listing.fits ? 0 : 1;
}

template <class T, class Value>
bool fits(Value value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value == 0 || value == 1;
  } else {
    return std::in_range<T>(value);
  }
}

}  // namespace

Reader::Reader(const InputFile& file, ErrorKind kind) : path_(file.path()), kind_(kind) {
  const Lock lock;
  start_library();
  const auto refuse = [&](const std::string& why) { throw Error(kind_, "cannot read '", path_, "': ", why); };
  if (const std::string problem = first_look(file); !problem.empty()) refuse(problem);
  const std::string name = name_of_opened(file);
  if (::access(name.c_str(), F_OK) != 0)
    refuse("HDF5 files are opened through /proc, which is not mounted here");
  const Hid access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_file_locking(access.get(), false, true);
  file_ = Hid(H5Fopen(name.c_str(), H5F_ACC_RDONLY, access.get()));
  hsize_t length = 0;
  if (!file_ || H5Fget_filesize(file_.get(), &length) < 0)
    refuse(concat("the HDF5 file is damaged or incomplete (", reason(), ")"));
  capacity_ = capacity_of(file, length);
  budget_ = ReadBudget(capacity_);
}

Reader open_record(const DirectoryEntry& entry, const std::string& format, std::int64_t version) {
  Reader file(InputFile(entry), ErrorKind::checkpoint);
  const auto refuse = [&](const std::string& why) { throw Error(ErrorKind::checkpoint, entry.path() + why); };
  if (!file.has_format(format)) refuse(concat(" is an HDF5 file, but no ", format));
  if (const auto found = file.attribute<std::int64_t>("/", "version"); found != version)
    refuse(concat(" has version ", found, " of ", format, "; this program reads ", version));
  return file;
}

void require_like_or_nothing(const InputFile& file, std::string_view format, std::string_view what,
                             std::string_view option) {
  if (file.size() == 0) return;
  std::string wanted(what);
  try {
    if (Reader(file).has_format(format)) return;
  } catch (const Error&) {  // no HDF5, or damaged
    wanted += " that can be read";
  }
  refuse_to_replace(file, wanted, option);
}

bool Reader::has_format(std::string_view format) const {
  return has_attribute("/", "format") && attribute<std::string>("/", "format") == format;
}

void Reader::fail(std::string_view object, std::string_view text) const {
  throw Error(kind_, "cannot use ", object, " of '", path_, "': ", text);
}

void Reader::fail_hdf5(std::string_view object, std::string_view doing) const {
  throw Error(kind_, "cannot ", doing, " ", object, " of '", path_, "': the file is damaged (", reason(),
              ")");
}

void Reader::charge(std::string_view object, std::uint64_t count, std::uint64_t bytes) const {
  const Lock lock;
  if (!budget_.take(count, bytes)) fail_budget(object);
}

void Reader::fail_budget(std::string_view object) const {
  fail(object,
       concat("with it the file asks for more memory than ", ReadBudget::kTimesTheFile,
              " times its size and 64 MB (an object has many names, or the lengths of lists multiply); no "
              "program of cifar_mpi writes such a file, use another copy"));
}

// Link by link: HDF5 itself would follow links that lead elsewhere.
Hid Reader::find(std::string_view object, bool open) const {
  Hid at(H5Oopen(file_.get(), "/", H5P_DEFAULT));
  if (!at) fail_hdf5("/", "open");
  for (const std::string& prefix : path_prefixes(object)) {
    const std::string name = prefix.substr(prefix.rfind('/') + 1);
    if (name.empty()) continue;
    const htri_t exists = H5Lexists(at.get(), name.c_str(), H5P_DEFAULT);
    if (exists < 0) fail_hdf5(prefix, "look for");
    if (exists == 0) return Hid();
    H5L_info_t link{};
    if (H5Lget_info(at.get(), name.c_str(), &link, H5P_DEFAULT) < 0) fail_hdf5(prefix, "look at");
    if (link.type != H5L_TYPE_HARD) {
      fail(prefix, concat("it is ", link.type == H5L_TYPE_SOFT ? "a soft link" : "a link to another file",
                          ", which is not followed; copy what it points to into the file"));
    }
    if (!open && prefix.size() == object.size()) break;
    Hid next(H5Oopen(at.get(), name.c_str(), H5P_DEFAULT));
    if (!next) fail_hdf5(prefix, "open");
    at = std::move(next);
  }
  return at;
}

bool Reader::has(std::string_view object) const {
  const Lock lock;
  return bool(find(object, false));
}

Hid Reader::open_object(std::string_view object) const {
  Hid id = find(object, true);
  if (!id) fail(object, "there is no such object in the file");
  return id;
}

Hid Reader::open_dataset(std::string_view object) const {
  Hid id = open_object(object);
  if (H5Iget_type(id.get()) != H5I_DATASET) fail(object, "it is not a data set");
  // Before any other query: even a query of the dims makes HDF5 open the files that a virtual data set names.
  const Hid made(H5Dget_create_plist(id.get()));
  if (!made) fail_hdf5(object, "look at");
  const H5D_layout_t layout = H5Pget_layout(made.get());
  const bool inside = layout == H5D_COMPACT || layout == H5D_CONTIGUOUS || layout == H5D_CHUNKED;
  if (!inside || H5Pget_external_count(made.get()) != 0) {
    fail(object,
         concat("its content lies in other files (", inside ? "external storage" : "a virtual data set",
                "), which are not opened; copy it into this one"));
  }
  for (int i = 0; i < H5Pget_nfilters(made.get()); ++i) {
    const H5Z_filter_t filter = filter_of(made, i);
    if (keeps_size(filter)) continue;
    fail(object,
         concat("it is compressed (filter ", filter,
                "), so its size cannot be checked against the file; unpack it ", "with h5repack -f NONE"));
  }
  return id;
}

bool Reader::is_group(std::string_view object) const {
  const Lock lock;
  const Hid id = find(object, true);
  return id && H5Iget_type(id.get()) == H5I_GROUP;
}

std::vector<std::string> Reader::members(std::string_view group) const {
  const Lock lock;
  const Hid id = open_object(group);
  H5G_info_t info{};
  if (H5Gget_info(id.get(), &info) < 0) fail(group, "it is not a group");
  if (info.nlinks > kMostMembers)
    fail(group, concat("it has ", info.nlinks, " members, more than ", kMostMembers));
  // Callers keep each path in a list and as a name.
  charge(group, info.nlinks, 2 * group.size() + kMemberBytes);
  Listing listing{{}, budget_};
  if (H5Literate(id.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, note_member, &listing) < 0)
    fail_hdf5(group, "list");
  if (!listing.fits) fail_budget(group);
  return std::move(listing.names);
}

Type Reader::type(std::string_view object) const {
  const Lock lock;
  const Hid set = open_dataset(object);
  const Hid type(H5Dget_type(set.get()));
  return classify(type.get());
}

Dims Reader::dims(std::string_view object) const {
  const Lock lock;
  return dims(open_dataset(object), object);
}

Dims Reader::dims(const Hid& set, std::string_view object) const {
  const Hid type(H5Dget_type(set.get()));
  const Hid space(H5Dget_space(set.get()));
  Dims found = dims_of(space.get());
  const std::uint64_t stored = std::min<std::uint64_t>(H5Dget_storage_size(set.get()), capacity_);
  if (!holds(stored, found, H5Tget_size(type.get()))) {
    fail(object, concat("its dims are ", to_string(found), ", but the file holds only ", stored,
                        " bytes of it; the file is damaged or was never filled"));
  }
  return found;
}

void Reader::read_whole(std::string_view object, Type wanted, void* values, std::size_t size) const {
  const Lock lock;
  const Hid set = open_dataset(object);
  const Hid type(H5Dget_type(set.get()));
  const Dims found = dims(set, object);
  if (classify(type.get()) != wanted) {
    fail(object, concat("expected ", to_string(wanted), ", found ", to_string(classify(type.get()))));
  }
  if (count(found) != size) fail(object, concat("expected ", size, " values, found dims ", to_string(found)));
  if (size == 0) return;
  if (const std::string problem = problem_of_chunks(set, all_rows(found), budget_); !problem.empty())
    fail(object, problem);
  if (H5Dread(set.get(), memory_type(wanted), H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0)
    fail_hdf5(object, "read");
}

void Reader::read_rows(std::string_view object, Type wanted, std::uint64_t first, std::uint64_t rows,
                       void* values, std::size_t size) const {
  const Lock lock;
  const Hid set = open_dataset(object);
  const Hid type(H5Dget_type(set.get()));
  const Hid space(H5Dget_space(set.get()));
  Dims part = dims(set, object);
  if (classify(type.get()) != wanted) {
    fail(object, concat("expected ", to_string(wanted), ", found ", to_string(classify(type.get()))));
  }
  if (part.empty() || first > part[0] || rows > part[0] - first) {
    fail(object, concat("entries ", first, " to ", first + rows, " were requested, but its dims are ",
                        to_string(part)));
  }
  part[0] = rows;
  if (count(part) != size) fail(object, concat("expected ", size, " values, found dims ", to_string(part)));
  if (size == 0) return;
  if (const std::string problem = problem_of_chunks(set, {part, first, rows}, budget_); !problem.empty())
    fail(object, problem);
  const std::vector<hsize_t> extents(part.begin(), part.end());
  std::vector<hsize_t> start(part.size(), 0);
  start[0] = first;
  const Hid memory(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr));
  if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, extents.data(), nullptr) < 0 ||
      H5Dread(set.get(), memory_type(wanted), memory.get(), space.get(), H5P_DEFAULT, values) < 0) {
    fail_hdf5(object, "read");
  }
}

void Reader::require_text(std::string_view object, Id type) const {
  if (classify(type) != Type::text) fail(object, concat("expected text, found ", to_string(classify(type))));
  if (H5Tis_variable_str(type) == 0) return;
  fail(object, concat("its text is of variable length, where HDF5 believes lengths that it does not check; ",
                      "store it with a fixed length (in h5py: dtype 'S64')"));
}

std::vector<std::string> Reader::read_strings(std::string_view object, std::uint64_t most) const {
  const Lock lock;
  const Hid set = open_dataset(object);
  const Hid type(H5Dget_type(set.get()));
  require_text(object, type.get());
  const Dims found = dims(set, object);
  if (count(found) > most) fail(object, concat("it has ", count(found), " texts, expected at most ", most));
  charge(object, count(found), text_bytes(type.get()));
  if (const std::string problem = problem_of_chunks(set, all_rows(found), budget_); !problem.empty())
    fail(object, problem);
  std::vector<std::string> values(count(found));
  const bool good = read_text(type.get(), values, [&](hid_t memory, void* destination) {
    return H5Dread(set.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, destination) >= 0;
  });
  if (!good) fail_hdf5(object, "read");
  return values;
}

bool Reader::has_attribute(std::string_view object, const std::string& name) const {
  const Lock lock;
  const htri_t exists = H5Aexists(open_object(object).get(), name.c_str());
  if (exists < 0) fail_hdf5(object, "list the attributes");
  return exists > 0;
}

Hid Reader::open_attribute(const Hid& object, std::string_view object_name, const std::string& name) const {
  const htri_t exists = H5Aexists(object.get(), name.c_str());
  if (exists == 0) fail(object_name, concat("it has no attribute '", name, "'"));
  Hid id(H5Aopen(object.get(), name.c_str(), H5P_DEFAULT));
  if (!id) fail_hdf5(object_name, "open an attribute");
  const Hid space(H5Aget_space(id.get()));
  if (H5Sget_simple_extent_npoints(space.get()) != 1) {
    fail(object_name, concat("attribute '", name, "' is not a single value"));
  }
  return id;
}

template <class T>
T Reader::attribute(std::string_view object, const std::string& name) const {
  const Lock lock;
  const Hid owner = open_object(object);
  const Hid id = open_attribute(owner, object, name);
  const Hid type(H5Aget_type(id.get()));
  const auto read = [&](hid_t memory, void* value) {
    if (H5Aread(id.get(), memory, value) < 0) fail_hdf5(object, concat("read attribute '", name, "'"));
    return true;
  };
  const Type found = classify(type.get());
  const bool whole = is_whole_number(type.get());
  if (H5Tget_size(type.get()) > capacity_)
    fail(object, concat("attribute '", name, "' is larger than the file"));
  if constexpr (std::is_same_v<T, std::string>) {
    std::vector<std::string> value(1);
    require_text(concat("attribute '", name, "' of ", object), type.get());
    charge(object, 1, text_bytes(type.get()));
    if (read_text(type.get(), value, read)) return value[0];
  } else if constexpr (std::is_same_v<T, double>) {
    double value = 0.0;
    if ((found == Type::float32 || found == Type::float64) && read(H5T_NATIVE_DOUBLE, &value)) return value;
  } else if (whole && H5Tget_sign(type.get()) == H5T_SGN_2) {
    std::int64_t value = 0;
    read(H5T_NATIVE_INT64, &value);
    if (fits<T>(value)) return static_cast<T>(value);
  } else if (whole) {
    std::uint64_t value = 0;
    read(H5T_NATIVE_UINT64, &value);
    if (fits<T>(value)) return static_cast<T>(value);
  }
  fail(object, concat("attribute '", name, "' is of another type than expected, or out of range"));
}

template bool Reader::attribute<bool>(std::string_view, const std::string&) const;
template std::int64_t Reader::attribute<std::int64_t>(std::string_view, const std::string&) const;
template std::uint64_t Reader::attribute<std::uint64_t>(std::string_view, const std::string&) const;
template double Reader::attribute<double>(std::string_view, const std::string&) const;
template std::string Reader::attribute<std::string>(std::string_view, const std::string&) const;

}  // namespace cifar_mpi::hdf5
