#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "hdf5/call.hpp"
#include "hdf5/hdf5.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

/// HDF5 files from attackers.
namespace cifar_mpi::hdf5 {
namespace {

const std::vector<std::uint8_t> kBytes{1, 2, 3, 4, 5, 6, 7, 8};

/// Makes a file with the C library itself.
Hid strangers_file(const std::string& path) {
  return Hid(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
}

/// One of our files, another file of the same user that must stay unread, and an attacker's file that names
/// both.
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
    const Hid file = strangers_file(path_);
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
    const Hid file = strangers_file(path_);
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

TEST_F(Hdf5Stranger, GetsNoMoreMemoryThanEightTimesItsFileAndABit) {
  const std::string text(1'000'000, 't');
  {
    Writer file;
    file.write("/bytes", {text.size()}, std::vector<std::uint8_t>(text.size()));
    file.write_strings("/texts", {text});
    file.attribute("/bytes", "text", text);
    for (int i = 0; i < 100; ++i) file.group("/groups/g" + std::to_string(i));
    file.save(path_);
  }
  const double bytes = static_cast<double>(std::filesystem::file_size(path_));
  const auto times = [&](const std::string& object, const auto& read) {
    const Reader file(path_);
    int count = 0;
    expect_error(ErrorKind::data, {path_, object, "asks for more memory than 8 times its size"}, [&] {
      for (; count < 1000; ++count) read(file);
    });
    return count;
  };
  const int most = static_cast<int>(8 * bytes / 1e6 + 64);
  EXPECT_EQ(times("/bytes", [](const Reader& file) { file.read<std::uint8_t>("/bytes"); }), most);
  EXPECT_EQ(times("/lists", [](const Reader& file) { file.charge("/lists", 1000, 1000); }), most);
  EXPECT_LE(times("/texts", [](const Reader& file) { file.read_strings("/texts"); }), most);
  EXPECT_LE(times("/bytes", [](const Reader& file) { file.attribute<std::string>("/bytes", "text"); }), most);
  EXPECT_LE(times("/groups", [](const Reader& file) { file.members("/groups"); }), 2 * most);
  const Reader file(path_);
  expect_error(ErrorKind::data, {"/product"}, [&] { file.charge("/product", UINT64_MAX / 2, 3); });
  std::vector<std::uint8_t> own(text.size());  // in the caller's memory, for any number of uses
  for (int i = 0; i < 200; ++i) file.read("/bytes", std::span(own));
}

/// Makes a data set of `bytes` bytes with the properties `create`; writes nothing into it.
void announce(const Hid& file, const char* name, hsize_t bytes, const Hid& create) {
  const Hid space(H5Screate_simple(1, &bytes, nullptr));
  const Hid set(
      H5Dcreate2(file.get(), name, H5T_NATIVE_UINT8, space.get(), H5P_DEFAULT, create.get(), H5P_DEFAULT));
  ASSERT_TRUE(set);
}

TEST_F(Hdf5Stranger, GetsNoMemoryForWhatIsCompressed) {
  constexpr hsize_t kAnnounced = 64 << 20;
  {
    const Hid file = strangers_file(path_);
    const Hid create(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_chunk(create.get(), 1, &kAnnounced);
    for (int i = 0; i < 2; ++i) ASSERT_GE(H5Pset_deflate(create.get(), 9), 0);
    announce(file, "twice", kAnnounced, create);
    const Hid set(H5Dopen2(file.get(), "twice", H5P_DEFAULT));
    const std::vector<std::uint8_t> zeros(kAnnounced);
    ASSERT_GE(H5Dwrite(set.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data()), 0);
  }
  EXPECT_LT(read_file(path_).size(), 10'000u);
  const Reader file(path_);
  expect_error(ErrorKind::data, {path_, "/twice", "compressed", "h5repack"}, [&] { file.dims("/twice"); });
  expect_error(ErrorKind::data, {path_, "/twice"}, [&] { file.read<std::uint8_t>("/twice"); });
}

TEST_F(Hdf5Stranger, GetsNoMemoryForHoles) {
  {
    const Hid file = strangers_file(path_);
    const Hid create(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_alloc_time(create.get(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(create.get(), H5D_FILL_TIME_NEVER);
    announce(file, "holes", hsize_t{8} << 30, create);
  }
  EXPECT_EQ(std::filesystem::file_size(path_) >> 33, 1u);
  const Reader file(path_);
  expect_error(ErrorKind::data, {path_, "asks for more memory"}, [&] { file.charge("/", 2'000'000'000); });
  expect_error(ErrorKind::data, {path_, "/holes", "8589934592"}, [&] { file.read<std::uint8_t>("/holes"); });
}

TEST_F(Hdf5Stranger, GetsNoMemoryForMoreThanTheFileHas) {
  {
    const Hid file = strangers_file(path_);
    const Hid create(H5Pcreate(H5P_DATASET_CREATE));
    const hsize_t chunk = 1024;
    H5Pset_chunk(create.get(), 1, &chunk);
    announce(file, "little", 600 * 1024, create);
    const Hid set(H5Dopen2(file.get(), "little", H5P_DEFAULT));
    const std::vector<std::uint8_t> part(1024, 7);
    const hsize_t offset = 0;
    ASSERT_GE(H5Dwrite_chunk(set.get(), H5P_DEFAULT, 0, &offset, part.size(), part.data()), 0);
  }
  const Reader file(path_);
  expect_error(ErrorKind::data, {path_, "/little", "614400", "1024 bytes"},
               [&] { file.read<std::uint8_t>("/little"); });
}

/// Makes /bytes of three chunks of 4096 bytes and writes the given number of bytes into each, as if from its
/// filters.
void write_chunks(const std::string& path, const Hid& create, const std::vector<std::size_t>& stored) {
  constexpr hsize_t kChunk = 4096;
  const Hid file = strangers_file(path);
  H5Pset_chunk(create.get(), 1, &kChunk);
  announce(file, "bytes", 3 * kChunk, create);
  const Hid set(H5Dopen2(file.get(), "bytes", H5P_DEFAULT));
  for (hsize_t i = 0; i < stored.size(); ++i) {
    const std::vector<std::uint8_t> part(stored[i], 7);
    const hsize_t offset = i * kChunk;
    if (!part.empty()) {
      ASSERT_GE(H5Dwrite_chunk(set.get(), H5P_DEFAULT, 0, &offset, part.size(), part.data()), 0);
    }
  }
}

TEST_F(Hdf5Stranger, GetsNothingOfTheMemoryBeyondAChunkThatIsTooShort) {
  for (const bool summed : {false, true}) {
    const Hid create(H5Pcreate(H5P_DATASET_CREATE));
    ASSERT_GE(summed ? H5Pset_fletcher32(create.get()) : H5Pset_shuffle(create.get()), 0);
    std::vector<std::uint8_t> rows(4096);
    for (const std::size_t second : std::vector<std::size_t>{0, 3, 8, summed ? 4099u : 4095u}) {
      write_chunks(path_, create, {20'000, second, 4100});
      const Reader file(path_);
      const std::string problem = concat(second, " of ", summed ? 4100 : 4096, " bytes");
      expect_error(ErrorKind::data, {path_, "/bytes", problem}, [&] { file.read<std::uint8_t>("/bytes"); });
      expect_error(ErrorKind::data, {path_, "/bytes", problem},
                   [&] { file.read_rows("/bytes", 8000, 4096, std::span(rows)); });
    }
  }
  const Hid create(H5Pcreate(H5P_DATASET_CREATE));
  ASSERT_GE(H5Pset_shuffle(create.get()), 0);
  write_chunks(path_, create, {4096, 4096, 4096});
  EXPECT_EQ(Reader(path_).read<std::uint8_t>("/bytes"), std::vector<std::uint8_t>(3 * 4096, 7));
}

TEST_F(Hdf5Stranger, GetsNoMemoryForVeryManyChunks) {
  constexpr hsize_t kAnnounced = 1 << 16, kChunk = 1;
  {
    const Hid file = strangers_file(path_);
    const Hid create(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_chunk(create.get(), 1, &kChunk);
    H5Pset_alloc_time(create.get(), H5D_ALLOC_TIME_EARLY);
    announce(file, "bytes", kAnnounced, create);
  }
  const Reader file(path_);
  expect_error(ErrorKind::data, {path_, "/bytes", "65536 chunks", "h5repack"},
               [&] { file.read<std::uint8_t>("/bytes"); });
  std::vector<std::uint8_t> rows(1000, 1);
  file.read_rows("/bytes", 5, 1000, std::span(rows));
  EXPECT_EQ(rows, std::vector<std::uint8_t>(1000, 0));
}

TEST_F(Hdf5Stranger, CannotGiveTextOfVariableLength) {
  {
    const Hid file = strangers_file(path_);
    const Hid type(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), H5T_VARIABLE);
    const hsize_t size = 2;
    const Hid list(H5Screate_simple(1, &size, nullptr)), scalar(H5Screate(H5S_SCALAR));
    const Hid set(
        H5Dcreate2(file.get(), "names", type.get(), list.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    const Hid attribute(H5Acreate2(file.get(), "name", type.get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT));
    const char* values[] = {"one", "two"};
    ASSERT_GE(H5Dwrite(set.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
    ASSERT_GE(H5Awrite(attribute.get(), type.get(), values), 0);
  }
  const Reader file(path_);
  expect_error(ErrorKind::data, {path_, "/names", "variable length"}, [&] { file.read_strings("/names"); });
  expect_error(ErrorKind::data, {path_, "'name' of /", "variable length"},
               [&] { file.attribute<std::string>("/", "name"); });
}

TEST_F(Hdf5Stranger, CannotGiveMoreTextThanAskedFor) {
  Writer writer;
  writer.write_strings("/names", std::vector<std::string>(1001, "x"));
  writer.save(path_);
  const Reader file(path_);
  EXPECT_EQ(file.read_strings("/names", 1001).size(), 1001u);
  expect_error(ErrorKind::data, {path_, "/names", "1001", "at most 1000"},
               [&] { file.read_strings("/names", 1000); });
}

TEST_F(Hdf5Stranger, CannotGiveNumbersThatFillTheirBytesInPart) {
  {
    const Hid file = strangers_file(path_);
    const Hid number(H5Tcopy(H5T_NATIVE_INT64)), real(H5Tcopy(H5T_NATIVE_FLOAT));
    ASSERT_GE(H5Tset_precision(number.get(), 33), 0);
    ASSERT_GE(H5Tset_ebias(real.get(), 3), 0);
    const Hid scalar(H5Screate(H5S_SCALAR));
    for (const auto& [name, type] :
         {std::pair<const char*, const Hid*>{"number", &number}, {"real", &real}}) {
      const Hid attribute(H5Acreate2(file.get(), name, type->get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT));
      const std::uint64_t zero = 0;
      ASSERT_GE(H5Awrite(attribute.get(), type->get(), &zero), 0);
    }
  }
  const Reader file(path_);
  expect_error(ErrorKind::data, {path_, "number"}, [&] { file.attribute<std::int64_t>("/", "number"); });
  expect_error(ErrorKind::data, {path_, "real"}, [&] { file.attribute<double>("/", "real"); });
}

TEST_F(Hdf5Stranger, CannotMakeItsReaderLoadAFilter) {
  write_file(path_, "");
  expect_error(ErrorKind::data, {path_}, [&] { Reader file(path_); });
  unsigned allowed = ~0u;
  ASSERT_GE(H5PLget_loading_state(&allowed), 0);
  EXPECT_EQ(allowed, 0u);
}

/// An attacker exchanges the file between the check and HDF5's own opening.
TEST(Stranger, ExchangesNoFileThatWasOpened) {
  const TempDir dir;
  for (const std::uint8_t value : std::vector<std::uint8_t>{1, 2}) {
    Writer file;
    file.write("/value", {1}, std::vector<std::uint8_t>{value});
    file.save(dir / (value == 1 ? "file.h5" : "other.h5"));
  }
  const InputFile opened(dir.opened() / "file.h5");
  std::filesystem::rename(dir / "file.h5", dir / "aside.h5");
  std::filesystem::create_symlink("other.h5", dir / "file.h5");
  EXPECT_EQ(Reader(opened).read<std::uint8_t>("/value"), std::vector<std::uint8_t>{1});
  EXPECT_EQ(Reader(dir / "file.h5").read<std::uint8_t>("/value"), std::vector<std::uint8_t>{2});
  expect_error(ErrorKind::checkpoint, {dir / "file.h5", "symbolic link"},
               [&] { open_record(dir / "file.h5", "format", 1); });
}

}  // namespace
}  // namespace cifar_mpi::hdf5
