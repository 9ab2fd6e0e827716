#include "cifar_mpi/data/dataset.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hdf5/hdf5.hpp"
#include "support/damage.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::data {
namespace {

struct Set {
  DatasetInfo info;
  Samples train;
  Samples test;
};

Set make_set(Extent image, std::uint64_t count, int classes = 3) {
  Set set;
  set.info.image = image;
  set.info.source = "made for a test";
  for (int i = 0; i < classes; ++i) set.info.label_names.push_back("class " + std::to_string(i));
  make_synthetic(image, classes, count, 1, set.train, set.test);
  return set;
}

TEST(DatasetFile, ComesBackAsItWasWritten) {
  for (const Extent image : {Extent{32, 32, 3}, Extent{28, 28, 1}, Extent{9, 17, 4}}) {
    const TempDir dir;
    const Set set = make_set(image, 600);
    write_dataset(dir / "set.h5", set.info, set.train, set.test);
    const DatasetFile file(dir / "set.h5");
    EXPECT_EQ(file.info().image, image);
    EXPECT_EQ(file.info().label_names, set.info.label_names);
    EXPECT_EQ(file.info().source, "made for a test");
    EXPECT_EQ(file.info().count(Split::train), 600u);
    EXPECT_EQ(file.info().count(Split::test), 120u);
    const Samples train = file.read(Split::train, {0, 600});
    EXPECT_TRUE(train.images == set.train.images);
    EXPECT_EQ(train.labels, set.train.labels);
    const Samples test = file.read(Split::test, {0, 120});
    EXPECT_TRUE(test.images == set.test.images);
    EXPECT_EQ(test.labels, set.test.labels);
  }
}

TEST(DatasetFile, NamesTheFileOfEachImageIfItWasGivenThem) {
  const TempDir dir;
  const std::string path = dir / "set.h5";
  Set set = make_set({8, 8, 1}, 10);
  write_dataset(path, set.info, set.train, set.test);
  EXPECT_TRUE(DatasetFile(path).read_files(Split::test).empty());
  for (std::size_t i = 0; i < set.test.labels.size(); ++i)
    set.test.files.push_back("cat/\xff\n," + std::string(7 * i, 'x') + ".png");
  write_dataset(path, set.info, set.train, set.test);
  EXPECT_EQ(DatasetFile(path).read_files(Split::test), set.test.files);
  EXPECT_TRUE(DatasetFile(path).read_files(Split::train).empty());
  set.test.files.pop_back();
  expect_error(ErrorKind::data, {path, "of /test come with 2 names of files"},
               [&] { write_dataset(path, set.info, set.train, set.test); });
}

TEST(DatasetFile, GivesShardsThatAddUpToTheWhole) {
  const TempDir dir;
  const Set set = make_set({32, 32, 3}, 1001);
  write_dataset(dir / "set.h5", set.info, set.train, set.test);
  const DatasetFile file(dir / "set.h5");
  for (const std::uint64_t ranks : {1u, 2u, 3u, 4u, 7u}) {
    Samples whole;
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      const Samples part = file.read(Split::train, shard_of(1001, rank, ranks));
      whole.images.insert(whole.images.end(), part.images.begin(), part.images.end());
      whole.labels.insert(whole.labels.end(), part.labels.begin(), part.labels.end());
    }
    EXPECT_TRUE(whole.images == set.train.images);
    EXPECT_EQ(whole.labels, set.train.labels);
  }
  EXPECT_TRUE(file.read(Split::train, {5, 0}).labels.empty());
  expect_error(ErrorKind::data, {dir / "set.h5", "/train/images"}, [&] {
    file.read(Split::train, {1000, 2});
  });
}

TEST(DatasetFile, HasNoMoreAndNoLongerLabelNamesThanItIsGivenMemoryFor) {
  const TempDir dir;
  const Set set = make_set({8, 8, 1}, 10);
  const auto write = [&](const std::vector<std::string>& names) {
    hdf5::Writer file;
    file.attribute("/", "format", "cifar_mpi dataset");
    file.attribute("/", "format_version", std::int64_t{1});
    for (const auto& [group, samples] : {std::pair{"/train", &set.train}, {"/test", &set.test}}) {
      const std::string name = group;
      file.write(name + "/images", {samples->labels.size(), 8, 8, 1}, samples->images);
      file.write(name + "/labels", {samples->labels.size()}, samples->labels);
    }
    file.write_strings("/label_names", names);
    file.save(dir / "set.h5");
  };
  write({"a", "b", "c"});
  EXPECT_EQ(DatasetFile(dir / "set.h5").info().classes(), 3);
  write(std::vector<std::string>(1'000'000, "x"));
  expect_error(ErrorKind::data, {"/label_names", "1000000", "at most 1000"},
               [&] { DatasetFile file(dir / "set.h5"); });
  write({"a", "b", std::string(256, 'x')});
  expect_error(ErrorKind::data, {"/label_names", "class 2", "255 bytes"},
               [&] { DatasetFile file(dir / "set.h5"); });
}

TEST(DatasetFile, NamesAFileThatIsMissingForeignOrTruncated) {
  const TempDir dir;
  const std::string path = dir / "set.h5";
  expect_error(ErrorKind::data, {path, "No such file", "cifar_mpi_pack"}, [&] { DatasetFile file(path); });
  write_file(path, "text");
  expect_error(ErrorKind::data, {path, "not an HDF5 file", "cifar_mpi_pack"},
               [&] { DatasetFile file(path); });
  const Set set = make_set({8, 8, 1}, 10);
  write_dataset(path, set.info, set.train, set.test);
  const std::string whole = read_file(path);
  write_file(path, whole.substr(0, whole.size() - 100));
  expect_error(ErrorKind::data, {path, "incomplete", "cifar_mpi_pack"}, [&] { DatasetFile file(path); });
}

TEST(DatasetFile, NoticesADamagedImage) {
  const TempDir dir;
  const std::string path = dir / "set.h5";
  const Set set = make_set({8, 8, 1}, 10);
  write_dataset(path, set.info, set.train, set.test);
  std::string content = read_file(path);
  const std::size_t at = content.find(std::string(set.train.images.begin(), set.train.images.end()));
  ASSERT_NE(at, std::string::npos);
  content[at + 77] ^= 16;
  write_file(path, content);
  const DatasetFile file(path);
  EXPECT_EQ(file.read(Split::test, {0, 3}).labels, set.test.labels);
  expect_error(ErrorKind::data, {path, "/train/images", "damaged"}, [&] { file.read(Split::train, {0, 1}); });
}

TEST(DatasetFile, IsReadAsItWasOrNotAtAllWithAnyByteWrong) {
  const TempDir dir;
  const std::string path = dir / "set.h5";
  const Set set = make_set({8, 8, 1}, 20);
  write_dataset(path, set.info, set.train, set.test);
  const auto reads_as_before = [&] {
    const DatasetFile file(path);
    const Samples train = file.read(Split::train, {0, set.train.labels.size()});
    const Samples test = file.read(Split::test, {0, set.test.labels.size()});
    return file.info().image == set.info.image && file.info().label_names == set.info.label_names &&
           file.info().source == set.info.source && train.images == set.train.images &&
           train.labels == set.train.labels && test.images == set.test.images &&
           test.labels == set.test.labels;
  };
  test::expect_damage_is_noticed(path, test::random_flips(read_file(path).size(), 200), ErrorKind::data,
                                 reads_as_before);
}

/// A dataset file with one thing changed.
struct Parts {
  std::string format = "cifar_mpi dataset";
  std::int64_t version = 1;
  hdf5::Dims train_images{4, 8, 8, 1};
  hdf5::Dims train_labels{4};
  hdf5::Dims test_images{2, 8, 8, 1};
  hdf5::Dims test_labels{2};
  std::size_t names = 2;
  std::string left_out;
  std::string as_float;
};

void write_parts(const std::string& path, const Parts& parts) {
  hdf5::Writer file;
  file.attribute("/", "format", parts.format);
  file.attribute("/", "format_version", parts.version);
  file.group("/train");
  file.group("/test");
  const auto write = [&](const std::string& object, const hdf5::Dims& dims) {
    const std::size_t size = hdf5::count(dims);
    if (object == parts.left_out) return;
    if (object == parts.as_float) return file.write(object, dims, std::vector<float>(size));
    file.write(object, dims, std::vector<std::uint8_t>(size));
  };
  write("/train/images", parts.train_images);
  write("/train/labels", parts.train_labels);
  write("/test/images", parts.test_images);
  write("/test/labels", parts.test_labels);
  if (parts.left_out != "/label_names")
    file.write_strings("/label_names", std::vector<std::string>(parts.names, "name"));
  file.save(path);
}

TEST(DatasetFile, NeedsNoMoreThanTheSchema) {
  const TempDir dir;
  write_parts(dir / "set.h5", {});
  EXPECT_EQ(DatasetFile(dir / "set.h5").info().train_count, 4u);
}

TEST(DatasetFile, NamesThePartThatDoesNotFitTheSchema) {
  const TempDir dir;
  const std::string path = dir / "set.h5";
  const auto expect_bad = [&](const std::vector<std::string>& mentions,
                              const std::function<void(Parts&)>& change) {
    Parts parts;
    change(parts);
    write_parts(path, parts);
    std::vector<std::string> all{path, "cifar_mpi_pack"};
    all.insert(all.end(), mentions.begin(), mentions.end());
    expect_error(ErrorKind::data, all, [&] { DatasetFile file(path); });
  };
  expect_bad({"format"}, [](Parts& p) { p.format = "something else"; });
  expect_bad({"version is 2", "version 1"}, [](Parts& p) { p.version = 2; });
  for (const char* object :
       {"/train/images", "/train/labels", "/test/images", "/test/labels", "/label_names"}) {
    expect_bad({object, "missing"}, [&](Parts& p) { p.left_out = object; });
  }
  for (const char* object : {"/train/images", "/train/labels", "/test/images", "/test/labels"}) {
    expect_bad({object, "float32", "uint8"}, [&](Parts& p) { p.as_float = object; });
  }
  expect_bad({"/train/images", "[4, 8, 8]"}, [](Parts& p) { p.train_images = {4, 8, 8}; });
  expect_bad({"/test/labels", "[2, 1]"}, [](Parts& p) { p.test_labels = {2, 1}; });
  expect_bad({"/train/images has 4", "/train/labels has 5"}, [](Parts& p) { p.train_labels = {5}; });
  expect_bad({"/test/images has 2", "/test/labels has 1"}, [](Parts& p) { p.test_labels = {1}; });
  expect_bad({"[4, 8, 8, 1]", "[2, 8, 9, 1]"}, [](Parts& p) { p.test_images = {2, 8, 9, 1}; });
  for (const std::uint64_t channels : {0u, 5u}) {
    expect_bad({std::to_string(channels) + " channels"}, [&](Parts& p) {
      p.train_images = {4, 8, 8, channels};
      p.test_images = {2, 8, 8, channels};
    });
  }
  expect_bad({"/train/images has no images"}, [](Parts& p) {
    p.train_images[0] = 0;
    p.train_labels[0] = 0;
  });
  expect_bad({"/test/images has no images"}, [](Parts& p) {
    p.test_images[0] = 0;
    p.test_labels[0] = 0;
  });
  expect_bad({"/train/images", "0x8x1"}, [](Parts& p) {
    p.train_images = {4, 0, 8, 1};
    p.test_images = {2, 0, 8, 1};
  });
  expect_bad({"/label_names is empty"}, [](Parts& p) { p.names = 0; });
  expect_bad({"256 classes", "255"}, [](Parts& p) { p.names = 256; });
}

/// Two classes with four images in each split.
void write_small(const std::string& path, const std::vector<std::uint8_t>& labels,
                 const std::vector<std::string>& test_files = {}) {
  hdf5::Writer out;
  out.attribute("/", "format", "cifar_mpi dataset");
  out.attribute("/", "format_version", 1);
  for (const std::string split : {"/train", "/test"}) {
    out.write(split + "/images", {4, 2, 2, 1}, std::vector<std::uint8_t>(16));
    out.write(split + "/labels", {4}, labels);
  }
  if (!test_files.empty()) out.write_strings("/test/files", test_files);
  out.write_strings("/label_names", {"a", "b"});
  out.save(path);
}

TEST(DatasetFile, NamesALabelOutOfRangeByItsIndexInTheFile) {
  const TempDir dir;
  const std::string path = dir / "set.h5";
  write_small(path, {0, 1, 1, 2});
  const DatasetFile file(path);
  EXPECT_EQ(file.read(Split::train, {0, 3}).labels.size(), 3u);
  expect_error(ErrorKind::data, {path, "entry 3 of /train/labels is 2"}, [&] {
    file.read(Split::train, {2, 2});
  });
}

TEST(DatasetFile, RefusesAnotherNumberOfFilesThanOfImages) {
  const TempDir dir;
  const std::string path = dir / "set.h5";
  for (const std::size_t names : {3u, 5u}) {
    write_small(path, {0, 0, 0, 0}, std::vector<std::string>(names, "a.png"));
    const DatasetFile file(path);
    expect_error(ErrorKind::data, {path, "/test/files"}, [&] { file.read_files(Split::test); });
  }
}

TEST(WriteDataset, RefusesWhatCouldNotBeRead) {
  const TempDir dir;
  const std::string path = dir / "set.h5";
  const auto expect_bad = [&](const std::string& mention, const std::function<void(Set&)>& change) {
    Set set = make_set({8, 8, 1}, 10);
    change(set);
    expect_error(ErrorKind::data, {path, mention},
                 [&] { write_dataset(path, set.info, set.train, set.test); });
  };
  expect_bad("image bytes", [](Set& s) { s.train.images.pop_back(); });
  expect_bad("label 4 of /train is 3", [](Set& s) { s.train.labels[4] = 3; });
  expect_bad("no images", [](Set& s) { s.test = {}; });
  expect_bad("/label_names is empty", [](Set& s) { s.info.label_names.clear(); });
  expect_bad("256 classes", [](Set& s) { s.info.label_names.resize(256); });
  expect_bad("name of class 1", [](Set& s) { s.info.label_names[1] = "two\nlines"; });
  expect_bad("control character", [](Set& s) { s.info.label_names[0] = std::string("nul\0", 4); });
  expect_bad("control character", [](Set& s) { s.info.label_names[2] = "\x7f"; });
  expect_bad("channels", [](Set& s) { s.info.image = {8, 4, 0}; });
  EXPECT_EQ(dir.files(), 0u);
}

TEST(WriteDataset, SaysWhereItCouldNotWrite) {
  const TempDir dir;
  const Set set = make_set({8, 8, 1}, 10);
  expect_error(ErrorKind::io, {dir / "none/set.h5"},
               [&] { write_dataset(dir / "none/set.h5", set.info, set.train, set.test); });
}

}  // namespace
}  // namespace cifar_mpi::data
