#include "hostile/files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <stdexcept>

#include "hdf5/call.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::test {
namespace {

using hdf5::Hid;
using Extents = std::vector<hsize_t>;

constexpr std::array<hsize_t, 12> kExtents{
    0, 1, 2, 3, 7, 32, 255, 256, 1u << 16, hsize_t{1} << 31, hsize_t{1} << 40, hsize_t{1} << 62};

/// Any type that HDF5 knows; small ones often.
Hid any_type(Dice& dice) {
  const hid_t plain[] = {H5T_NATIVE_UINT8, H5T_NATIVE_INT8,   H5T_STD_U16BE,      H5T_NATIVE_INT32,
                         H5T_STD_I64BE,    H5T_NATIVE_INT64,  H5T_NATIVE_UINT64,  H5T_NATIVE_FLOAT,
                         H5T_IEEE_F32BE,   H5T_NATIVE_DOUBLE, H5T_NATIVE_LDOUBLE, H5T_NATIVE_B8,
                         H5T_C_S1,         H5T_STD_REF_OBJ,   H5T_UNIX_D32LE};
  const Hid base(H5Tcopy(plain[dice.roll(std::size(plain))]));
  switch (dice.roll(8)) {
    case 0: {
      Hid compound(H5Tcreate(H5T_COMPOUND, 64));
      H5Tinsert(compound.get(), "a", 0, base.get());
      return compound;
    }
    case 1:
      return Hid(H5Tvlen_create(base.get()));
    case 2: {
      const hsize_t dims[] = {3, 2};
      return Hid(H5Tarray_create2(base.get(), 2, dims));
    }
    case 3:
      return Hid(H5Tcreate(H5T_OPAQUE, 1 + dice.roll(100)));
    case 4: {
      Hid text(H5Tcopy(H5T_C_S1));
      H5Tset_size(text.get(), dice.one_in(2) ? H5T_VARIABLE : 1 + dice.roll(5000));
      return text;
    }
    case 5: {
      Hid number(H5Tcopy(H5T_NATIVE_INT64));
      H5Tset_precision(number.get(), 1 + dice.roll(63));
      return number;
    }
    default:
      return Hid(H5Tcopy(base.get()));
  }
}

Hid type_of(const Wanted& wanted) {
  std::size_t longest = 1;
  for (const std::string& text : wanted.texts) longest = std::max(longest, text.size());
  if (wanted.kind == Wanted::Kind::text) return hdf5::text_type(longest);
  return Hid(H5Tcopy(wanted.kind == Wanted::Kind::bytes ? H5T_NATIVE_UINT8 : H5T_NATIVE_FLOAT));
}

Hid space_of(const Extents& dims, bool grows = false) {
  const Extents most(dims.size(), H5S_UNLIMITED);
  return Hid(dims.empty() ? H5Screate(H5S_SCALAR)
                          : H5Screate_simple(static_cast<int>(dims.size()), dims.data(),
                                             grows ? most.data() : nullptr));
}

std::string parent_of(const std::string& path) {
  const std::size_t at = path.rfind('/');
  return at == 0 ? "/" : path.substr(0, at);
}

/// One file that is being made. Calls that HDF5 refuses leave the object out.
class Maker {
 public:
  Maker(const Hid& file, Dice& dice, std::string secret, std::string other)
      : file_(file), dice_(dice), secret_(std::move(secret)), other_(std::move(other)) {
    links_ = Hid(H5Pcreate(H5P_LINK_CREATE));
    H5Pset_create_intermediate_group(links_.get(), 1);
  }

  void good(const Wanted& wanted) { put(wanted, type_of(wanted), dims_of(wanted), plain()); }

  void changed(const Wanted& wanted) {
    switch (dice_.roll(16)) {
      case 0:
        return;  // missing
      case 1:
        return put(wanted, any_type(dice_), dims_of(wanted), plain());
      case 2:
        return put(wanted, type_of(wanted), any_dims(), plain());
      case 3:
        return put(wanted, any_type(dice_), any_dims(), any_layout());
      case 4:
      case 5:
        return put(wanted, type_of(wanted), dims_of(wanted), any_layout());
      case 6: {
        Wanted group{Wanted::Kind::group, wanted.path, {}, {}, wanted.attributes};
        return good(group);
      }
      case 7:
      case 8:
        return link(wanted.path);
      case 9: {
        const Hid type = any_type(dice_);
        H5Tcommit2(file_.get(), wanted.path.c_str(), type.get(), links_.get(), H5P_DEFAULT, H5P_DEFAULT);
        return;
      }
      case 10:
        return external(wanted);
      case 11:
        return virtual_set(wanted);
      case 12:
        return depths(wanted.path);
      case 13:
        odd_attributes_ = true;
        good(wanted);
        odd_attributes_ = false;
        return;
      case 14: {
        Wanted other = wanted;
        for (std::string& text : other.texts) text = odd_text(dice_);
        for (auto& attribute : other.attributes) {
          attribute.text = odd_text(dice_);
          attribute.number = static_cast<std::int64_t>(dice_.roll(std::numeric_limits<std::uint64_t>::max()));
        }
        return good(other);
      }
      default: {
        Extents dims = dims_of(wanted);
        if (!dims.empty()) dims[dice_.roll(dims.size())] = dice_.any_of(kExtents);
        return put(wanted, type_of(wanted), dims, any_layout());
      }
    }
  }

 private:
  static Extents dims_of(const Wanted& wanted) { return {wanted.dims.begin(), wanted.dims.end()}; }
  static Hid plain() { return Hid(H5Pcreate(H5P_DATASET_CREATE)); }

  Extents any_dims() {
    Extents dims(dice_.one_in(10) ? dice_.roll(33) : dice_.roll(6));
    for (hsize_t& d : dims) d = dice_.any_of(kExtents);
    return dims;
  }

  Hid any_layout() {
    Hid made = plain();
    switch (dice_.roll(5)) {
      case 0:
        H5Pset_layout(made.get(), H5D_COMPACT);
        break;
      case 1:  // holes
        H5Pset_alloc_time(made.get(), H5D_ALLOC_TIME_EARLY);
        H5Pset_fill_time(made.get(), H5D_FILL_TIME_NEVER);
        break;
      default:
        chunks_ = true;
    }
    return made;
  }

  void add_filters(const Hid& made) {
    for (std::uint64_t n = dice_.roll(4); n > 0; --n) {
      switch (dice_.roll(5)) {
        case 0:
          H5Pset_deflate(made.get(), 9);
          break;
        case 1:
          H5Pset_shuffle(made.get());
          break;
        case 2:
          H5Pset_fletcher32(made.get());
          break;
        case 3:
          H5Pset_scaleoffset(made.get(), H5Z_SO_INT, 2);
          break;
        default:
          H5Pset_nbit(made.get());
      }
    }
  }

  void put(const Wanted& wanted, const Hid& type, const Extents& dims, const Hid& made) {
    if (wanted.kind == Wanted::Kind::group) {
      if (wanted.path != "/") {
        const Hid group(H5Gcreate2(file_.get(), wanted.path.c_str(), links_.get(), H5P_DEFAULT, H5P_DEFAULT));
        if (!group) return;
      }
    } else {
      if (chunks_ && !dims.empty()) {
        Extents chunk(dims.size());
        for (std::size_t i = 0; i < dims.size(); ++i)
          chunk[i] = 1 + dice_.roll(std::clamp<hsize_t>(dims[i], 1, 1 << 12));
        H5Pset_chunk(made.get(), static_cast<int>(chunk.size()), chunk.data());
        add_filters(made);
      }
      const Hid space = space_of(dims, chunks_ && dice_.one_in(3));
      chunks_ = false;
      const Hid set(H5Dcreate2(file_.get(), wanted.path.c_str(), type.get(), space.get(), links_.get(),
                               made.get(), H5P_DEFAULT));
      if (!set) return;
      fill(wanted, set, type, dims);
    }
    for (const Wanted::Attribute& attribute : wanted.attributes) put_attribute(wanted.path, attribute);
    if (first_.empty() && wanted.path != "/") first_ = wanted.path;
  }

  void fill(const Wanted& wanted, const Hid& set, const Hid& type, const Extents& dims) {
    hsize_t count = 1;
    for (const hsize_t d : dims) {
      if (d != 0 && count > (hsize_t{1} << 21) / d) return;  // announced, not written
      count *= d;
    }
    const std::size_t size = H5Tget_size(type.get());
    if (H5Tdetect_class(type.get(), H5T_VLEN) > 0 || H5Tis_variable_str(type.get()) > 0 ||
        H5Tdetect_class(type.get(), H5T_REFERENCE) > 0)
      return;
    std::vector<char> values(static_cast<std::size_t>(count) * size + 1);
    if (wanted.kind == Wanted::Kind::text) {
      for (std::size_t i = 0; i < std::min<std::size_t>(wanted.texts.size(), count); ++i) {
        const std::string& text = wanted.texts[i];
        std::copy_n(text.begin(), std::min(text.size(), size),
                    values.begin() + static_cast<std::ptrdiff_t>(i * size));
      }
    }
    H5Dwrite(set.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  }

  void put_attribute(const std::string& path, const Wanted::Attribute& attribute) {
    const Hid owner(H5Oopen(file_.get(), path.c_str(), H5P_DEFAULT));
    if (!owner) return;
    using Kind = Wanted::Attribute::Kind;
    Hid type = attribute.kind == Kind::text    ? hdf5::text_type(attribute.text.size())
               : attribute.kind == Kind::whole ? Hid(H5Tcopy(H5T_NATIVE_INT64))
                                               : Hid(H5Tcopy(H5T_NATIVE_DOUBLE));
    Hid space(H5Screate(H5S_SCALAR));
    if (odd_attributes_) {
      if (dice_.one_in(4)) return;
      if (dice_.one_in(2)) type = any_type(dice_);
      if (dice_.one_in(3)) space = Hid(H5Screate(H5S_NULL));
      if (dice_.one_in(3)) space = space_of({1 + dice_.roll(3), 1 + dice_.roll(3)});
    }
    const Hid made(
        H5Acreate2(owner.get(), attribute.name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT));
    if (!made || H5Tdetect_class(type.get(), H5T_VLEN) > 0 || H5Tis_variable_str(type.get()) > 0) return;
    std::vector<char> value(16 * H5Tget_size(type.get()) + 64);
    if (attribute.kind == Kind::text) std::copy(attribute.text.begin(), attribute.text.end(), value.begin());
    if (attribute.kind != Kind::text) std::memcpy(value.data(), &attribute.number, sizeof attribute.number);
    if (attribute.kind == Kind::text && value.size() < attribute.text.size()) return;
    H5Awrite(made.get(), type.get(), value.data());
  }

  void link(const std::string& path) {
    const std::string up = parent_of(path);
    switch (dice_.roll(8)) {
      case 0:
        H5Lcreate_soft(path.c_str(), file_.get(), path.c_str(), links_.get(), H5P_DEFAULT);  // to itself
        break;
      case 1:
        H5Lcreate_soft("/elsewhere/../x", file_.get(), path.c_str(), links_.get(), H5P_DEFAULT);
        break;
      case 2:
        H5Lcreate_external(other_.c_str(), path.c_str(), file_.get(), path.c_str(), links_.get(),
                           H5P_DEFAULT);
        break;
      case 3:
        H5Lcreate_external(secret_.c_str(), "/", file_.get(), path.c_str(), links_.get(), H5P_DEFAULT);
        break;
      case 4:  // one object of many names
        for (std::uint64_t i = dice_.roll(200); i > 0; --i) {
          const std::string name = path + "/n" + std::to_string(i);
          H5Lcreate_hard(file_.get(), first_.c_str(), file_.get(), name.c_str(), links_.get(), H5P_DEFAULT);
        }
        break;
      case 5:
        H5Lcreate_hard(file_.get(), first_.c_str(), file_.get(), path.c_str(), links_.get(), H5P_DEFAULT);
        break;
      default:  // a group within itself
        H5Lcreate_hard(file_.get(), dice_.one_in(2) ? "/" : up.c_str(), file_.get(), path.c_str(),
                       links_.get(), H5P_DEFAULT);
    }
  }

  void external(const Wanted& wanted) {
    const Hid made = plain();
    H5Pset_external(made.get(), secret_.c_str(), 0, dice_.one_in(2) ? H5F_UNLIMITED : 64);
    put_empty(wanted, made);
  }

  void virtual_set(const Wanted& wanted) {
    const Hid made = plain();
    const Hid space = space_of(dims_of(wanted));
    H5Pset_virtual(made.get(), space.get(), other_.c_str(), wanted.path.c_str(), space.get());
    put_empty(wanted, made);
  }

  void put_empty(const Wanted& wanted, const Hid& made) {
    const Hid type = type_of(wanted), space = space_of(dims_of(wanted));
    const Hid set(H5Dcreate2(file_.get(), wanted.path.c_str(), type.get(), space.get(), links_.get(),
                             made.get(), H5P_DEFAULT));
  }

  /// Groups in groups, or very many.
  void depths(const std::string& path) {
    std::string deep = path;
    const bool wide = dice_.one_in(2);
    for (std::uint64_t i = dice_.roll(300); i > 0; --i) {
      const std::string name = (wide ? path : deep) + "/g" + std::to_string(i);
      const Hid group(H5Gcreate2(file_.get(), name.c_str(), links_.get(), H5P_DEFAULT, H5P_DEFAULT));
      deep = name;
    }
  }

  const Hid& file_;
  Dice& dice_;
  std::string secret_, other_;
  std::string first_;  ///< the first object made
  Hid links_;
  bool chunks_ = false;
  bool odd_attributes_ = false;
};

void damage(const std::string& path, Dice& dice) {
  std::string content = read_file(path);
  if (content.empty()) return;
  if (dice.one_in(4)) {
    content.resize(dice.roll(content.size()));
  } else {
    for (std::uint64_t n = 1 + dice.roll(8); n > 0; --n)
      content[dice.roll(content.size())] = static_cast<char>(dice.roll(256));
  }
  write_file(path, content);
}

}  // namespace

void write_changed(const std::string& path, const std::vector<Wanted>& plan, Dice& dice, int changes,
                   const std::string& secret, const std::string& other) {
  hdf5::start_library();
  {
    const Hid access(H5Pcreate(H5P_FILE_ACCESS));
    if (dice.one_in(2)) H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_LATEST);
    const Hid file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
    if (!file) throw std::runtime_error("no file");
    std::vector<bool> change(plan.size(), false);
    for (; changes > 0; --changes) change[dice.roll(plan.size())] = true;
    Maker maker(file, dice, secret, other);
    for (std::size_t i = 0; i < plan.size(); ++i) change[i] ? maker.changed(plan[i]) : maker.good(plan[i]);
  }
  // A file of holes is not read whole to be damaged.
  if (dice.one_in(4) && std::filesystem::file_size(path) < 1 << 24) damage(path, dice);
}

bool put_no_file(const std::string& path, Dice& dice, const std::string& secret) {
  namespace fs = std::filesystem;
  switch (dice.roll(24)) {
    case 0:
      return mkfifo(path.c_str(), 0666) == 0;
    case 1:
      return fs::create_symlink(secret, path), true;
    case 2:
      return fs::create_symlink("nowhere", path), true;
    case 3:
      return fs::create_symlink(fs::path(path).filename(), path), true;
    case 4:
      return fs::create_symlink("/dev/zero", path), true;
    case 5:
      return fs::create_directory(path);
    case 6:
      return write_file(path, std::string(3 << 20, static_cast<char>(dice.roll(256)))), true;
    case 7:
      return write_file(path, ""), true;
    case 8: {
      write_file(path, "");
      fs::resize_file(path, std::uintmax_t{1} << 35);
      return true;
    }
    default:
      return false;
  }
}

std::string odd_text(Dice& dice) {
  static const std::vector<std::string> kWords{"",
                                               "\x1b[2J",
                                               "\xc2\x9b",
                                               "a\nb",
                                               "\r",
                                               "$(touch executed)",
                                               "`touch executed`",
                                               "../../secret",
                                               "/etc/passwd",
                                               "-1",
                                               "18446744073709551616",
                                               "1e999",
                                               "nan",
                                               "0x10",
                                               "NaN",
                                               "%s%n",
                                               "\xff\xfe",
                                               "\"",
                                               "'",
                                               "[[[[[[[[",
                                               "{\"step\":",
                                               "\\u0000"};
  std::string text = dice.any_of(kWords);
  if (dice.one_in(4)) text += std::string(dice.roll(3000), static_cast<char>(1 + dice.roll(255)));
  if (dice.one_in(3)) text += dice.any_of(kWords);
  return text;
}

}  // namespace cifar_mpi::test
