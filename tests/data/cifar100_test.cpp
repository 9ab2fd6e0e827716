#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "cifar_mpi/base/text.hpp"
#include "data/cifar.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::data {
namespace {

constexpr std::size_t kRecordBytes = 2 + 3072;

/// The official layout: coarse label, fine label, 1024 red, green and blue bytes.
std::string record(int coarse, int fine) {
  std::string text{static_cast<char>(coarse), static_cast<char>(fine)};
  for (int v = 0; v < 3072; ++v) text += static_cast<char>(fine + v * v % 251);
  return text;
}

std::string names(int count, const std::string& ending = "\n") {
  std::string text;
  for (int i = 0; i < count; ++i) text += concat("name_", i, ending);
  return text;
}

TEST(Cifar100, HasTwoLabelsInARecord) {
  const TempDir dir;
  write_file(dir / "train.bin", record(19, 99) + record(3, 7));
  Samples fine, coarse;
  read_binary_batch(dir / "train.bin", 2, fine, kCifar100Fine);
  read_binary_batch(dir / "train.bin", 2, coarse, kCifar100Coarse);
  EXPECT_EQ(fine.labels, (std::vector<std::uint8_t>{99, 7}));
  EXPECT_EQ(coarse.labels, (std::vector<std::uint8_t>{19, 3}));
  EXPECT_EQ(fine.images, coarse.images);
  for (const std::size_t pixel : {std::size_t{0}, std::size_t{33}, std::size_t{1023}}) {
    for (std::size_t c = 0; c < 3; ++c) {
      const std::size_t v = c * 1024 + pixel;
      EXPECT_EQ(fine.images[3072 + 3 * pixel + c], static_cast<std::uint8_t>(7 + v * v % 251));
    }
  }
}

TEST(Cifar100, NamesTheFileThatIsWrong) {
  const TempDir dir;
  Samples samples;
  write_file(dir / "bad.bin", record(0, 0) + record(20, 100));
  const auto read = [&](const BinaryRecord& wanted, std::uint64_t count) {
    read_binary_batch(dir / "bad.bin", count, samples, wanted);
  };
  expect_error(ErrorKind::data, {dir / "bad.bin", "label 100 in record 1", "0 to 99"},
               [&] { read(kCifar100Fine, 2); });
  expect_error(ErrorKind::data, {dir / "bad.bin", "label 20 in record 1", "0 to 19"},
               [&] { read(kCifar100Coarse, 2); });
  expect_error(ErrorKind::data, {"6148 bytes", "3 CIFAR-100 records have 9222"},
               [&] { read(kCifar100Fine, 3); });
}

TEST(Cifar100, ReadsTheWholeSet) {
  const TempDir dir;
  // All but the first record are holes: label 0, black.
  for (const auto& [name, count] : {std::pair("train.bin", 50'000u), std::pair("test.bin", 10'000u)}) {
    write_file(dir / name, record(19, 99));
    std::filesystem::resize_file(dir / name, count * kRecordBytes);
  }
  write_file(dir / "fine_label_names.txt", names(100, "\r\n") + "\n");
  write_file(dir / "coarse_label_names.txt", names(20));
  ASSERT_TRUE(holds_cifar100(dir.path()));
  Samples train, test;
  const std::vector<std::string> fine = read_cifar100_binary(dir.path(), false, train, test);
  ASSERT_EQ(fine.size(), 100u);
  EXPECT_EQ(fine[99], "name_99");
  EXPECT_EQ(train.labels.size(), 50'000u);
  EXPECT_EQ(test.labels.size(), 10'000u);
  EXPECT_EQ(test.labels[0], 99);
  EXPECT_EQ(read_cifar100_binary(dir.path(), true, train, test).size(), 20u);
  EXPECT_EQ(train.labels[0], 19);
}

TEST(NameList, HasOneNameALine) {
  const TempDir dir;
  const auto expect_bad = [&](const std::string& content, const std::string& part) {
    write_file(dir / "names.txt", content);
    expect_error(ErrorKind::data, {dir / "names.txt", part}, [&] { read_name_list(dir / "names.txt", 20); });
  };
  expect_bad("", "0 names, expected 20");
  expect_bad(names(19), "19 names");
  expect_bad(names(21), "21 names");
  expect_bad(concat("\n", names(19)), "no name in line 1");
  expect_error(ErrorKind::data, {dir / "none.txt"}, [&] { read_name_list(dir / "none.txt", 20); });
}

TEST(CifarFolder, IsOfOneSet) {
  const TempDir dir;
  expect_error(ErrorKind::data, {dir.path(), "neither", "data_batch_1..5.bin", "train.bin"},
               [&] { holds_cifar100(dir.path()); });
  write_file(dir / "data_batch_3.bin", "");
  EXPECT_FALSE(holds_cifar100(dir.path()));
  write_file(dir / "test.bin", "");
  expect_error(ErrorKind::data, {"data_batch_3.bin of CIFAR-10 and test.bin of CIFAR-100"},
               [&] { holds_cifar100(dir.path()); });
  std::filesystem::remove(dir / "data_batch_3.bin");
  EXPECT_TRUE(holds_cifar100(dir.path()));
}

}  // namespace
}  // namespace cifar_mpi::data
