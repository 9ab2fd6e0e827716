#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hdf5/call.hpp"
#include "hdf5/hdf5.hpp"
#include "support/temp_dir.hpp"

/// HDF5 files as somebody makes them who wants more of their reader than to be read.
namespace cifar_mpi::hdf5 {
namespace {

const std::vector<std::uint8_t> kBytes{1, 2, 3, 4, 5, 6, 7, 8};

/// Makes a file with the C library itself.
Hid foreign_file(const std::string& path) {
  return Hid(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
}

/// A file of ours, another of the same user that no file may lead to, and a stranger's file that names both.
class Hdf5Stranger : public testing::Test {
 protected:
  Hdf5Stranger() {
    write_file(secret_, "the key\nof another file\n");
    Writer other;
    other.write_strings("/names", {"the key"});
    other.write("/bytes", {8}, kBytes);
    other.save(other_);
  }

  TempDir dir_;
  const std::string secret_ = dir_ / "secret", other_ = dir_ / "other.h5", path_ = dir_ / "file.h5";
};

TEST_F(Hdf5Stranger, CannotMakeItsReaderReadOtherFilesAsExternalStorage) {
  {
    const Hid file = foreign_file(path_);
    const Hid create(H5Pcreate(H5P_DATASET_CREATE));
    ASSERT_GE(H5Pset_external(create.get(), secret_.c_str(), 0, 16), 0);
    const hsize_t size = 2;
    const Hid list(H5Screate_simple(1, &size, nullptr));
    const Hid text = text_type(8);
    const Hid set(
        H5Dcreate2(file.get(), "names", text.get(), list.get(), H5P_DEFAULT, create.get(), H5P_DEFAULT));
    ASSERT_TRUE(set);
  }
  const Reader file(path_);
  expect_error(ErrorKind::data, {path_, "/names", "other files", "external storage"},
               [&] { file.read_strings("/names"); });
  expect_error(ErrorKind::data, {path_, "/names"}, [&] { file.dims("/names"); });
  expect_error(ErrorKind::data, {path_, "/names"}, [&] { file.type("/names"); });
}

TEST_F(Hdf5Stranger, CannotMakeItsReaderReadOtherFilesAsAVirtualDataSet) {
  {
    const Hid file = foreign_file(path_);
    const Hid create(H5Pcreate(H5P_DATASET_CREATE));
    const hsize_t size = 8;
    const Hid space(H5Screate_simple(1, &size, nullptr));
    ASSERT_GE(H5Pset_virtual(create.get(), space.get(), other_.c_str(), "/bytes", space.get()), 0);
    const Hid set(H5Dcreate2(file.get(), "bytes", H5T_NATIVE_UINT8, space.get(), H5P_DEFAULT, create.get(),
                             H5P_DEFAULT));
    ASSERT_TRUE(set);
  }
  const Reader file(path_);
  expect_error(ErrorKind::data, {path_, "/bytes", "other files", "virtual"},
               [&] { file.read<std::uint8_t>("/bytes"); });
  std::vector<std::uint8_t> rows(2);
  expect_error(ErrorKind::data, {path_, "/bytes"}, [&] { file.read_rows("/bytes", 0, 2, std::span(rows)); });
}

TEST_F(Hdf5Stranger, CannotLeadItsReaderThroughLinks) {
  {
    Writer file;
    file.write("/group/bytes", {8}, kBytes);
    file.save(path_);
    const Hid opened(H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    ASSERT_GE(H5Lcreate_external(other_.c_str(), "/bytes", opened.get(), "outside", H5P_DEFAULT, H5P_DEFAULT),
              0);
    ASSERT_GE(H5Lcreate_external(other_.c_str(), "/", opened.get(), "file", H5P_DEFAULT, H5P_DEFAULT), 0);
    ASSERT_GE(H5Lcreate_soft("/group/bytes", opened.get(), "soft", H5P_DEFAULT, H5P_DEFAULT), 0);
    ASSERT_GE(H5Lcreate_soft("/circle", opened.get(), "circle", H5P_DEFAULT, H5P_DEFAULT), 0);
    ASSERT_GE(H5Lcreate_hard(opened.get(), "/group/bytes", opened.get(), "hard", H5P_DEFAULT, H5P_DEFAULT),
              0);
  }
  const Reader file(path_);
  EXPECT_EQ(file.read<std::uint8_t>("/hard"), kBytes);
  for (const char* object : {"/outside", "/file/bytes"}) {
    expect_error(ErrorKind::data, {path_, "link to another file"}, [&] { file.has(object); });
    expect_error(ErrorKind::data, {path_}, [&] { file.read<std::uint8_t>(object); });
    expect_error(ErrorKind::data, {path_}, [&] { file.is_group(object); });
  }
  for (const char* object : {"/soft", "/circle", "/circle/bytes"}) {
    expect_error(ErrorKind::data, {path_, "soft link"}, [&] { file.read<std::uint8_t>(object); });
    expect_error(ErrorKind::data, {path_}, [&] { file.has_attribute(object, "any"); });
  }
  expect_error(ErrorKind::data, {path_}, [&] { file.members("/file"); });
}

TEST_F(Hdf5Stranger, CannotMakeItsReaderLoadAFilter) {
  write_file(path_, "");
  expect_error(ErrorKind::data, {path_}, [&] { Reader file(path_); });
  unsigned allowed = ~0u;
  ASSERT_GE(H5PLget_loading_state(&allowed), 0);
  EXPECT_EQ(allowed, 0u);
}

}  // namespace
}  // namespace cifar_mpi::hdf5
