#include "cifar_mpi/base/input_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "cifar_mpi/base/clock.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi {
namespace {

TEST(InputFile, ComesWhole) {
  const TempDir dir;
  const std::string text("a\0b\nc", 5);
  write_file(dir / "file", text);
  std::filesystem::create_symlink(dir / "file", dir / "link");
  EXPECT_EQ(read_text_file(dir / "file", ErrorKind::usage), text);
  EXPECT_EQ(read_text_file(dir / "link", ErrorKind::usage), text);
  EXPECT_EQ(InputFile(dir / "link").problem(), "");
  write_file(dir / "empty", "");
  EXPECT_EQ(read_text_file(dir / "empty", ErrorKind::usage), "");
}

TEST(SmallFile, IsReadUpToTheMostAndNoFurther) {
  const TempDir dir;
  constexpr std::size_t kMost = 20'000;
  for (const std::size_t size : {4095ul, 4096ul, 4097ul, 8192ul, 16'384ul, kMost, kMost + 1, 5 * kMost}) {
    std::string text(size, 'x');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i % 251);
    write_file(dir / "file", text);
    const auto file = read_small_file(dir / "file", kMost);
    ASSERT_TRUE(file);
    EXPECT_EQ(file->readable, size <= kMost) << size;
    EXPECT_TRUE(file->content == (size <= kMost ? text : "")) << size;
  }
}

TEST(InputFile, IsFoundReadableToItsEndAtOnceThoughItIsNearlyAllHoles) {
  const TempDir dir;
  write_file(dir / "file", "begin");
  std::filesystem::resize_file(dir / "file", std::uintmax_t{64} << 30);
  const std::clock_t began = std::clock();  // of the processor: waiting for it does not count
  EXPECT_EQ(InputFile(dir / "file").fault(), "");
  EXPECT_LT(std::clock() - began, 2 * CLOCKS_PER_SEC);  // reading so many zeros takes 10 s or more
}

TEST(SmallFile, ComesWholeAndIsNothingElse) {
  const TempDir dir;
  EXPECT_FALSE(read_small_file(dir / "none"));
  write_file(dir / "file", std::string(4096, 'x'));
  ASSERT_TRUE(read_small_file(dir / "file"));
  EXPECT_EQ(read_small_file(dir / "file")->content, std::string(4096, 'x'));
  EXPECT_TRUE(read_small_file(dir / "file")->readable);
  EXPECT_GT(read_small_file(dir / "file")->modified_s, 1e9);
  write_file(dir / "large", std::string(4097, 'x'));
  std::filesystem::create_symlink("file", dir / "link");
  std::filesystem::create_symlink("/dev/zero", dir / "zero");
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0666), 0);
  std::filesystem::create_directory(dir / "folder");
  for (const char* name : {"large", "link", "zero", "pipe", "folder"}) {
    const auto file = read_small_file(dir / name);
    ASSERT_TRUE(file) << name;
    EXPECT_FALSE(file->readable) << name;
    EXPECT_EQ(file->content, "") << name;
    EXPECT_GT(file->modified_s, 1e9) << name;
  }
}

TEST(InputFile, MayBeAMebibyteAndNoMore) {
  const TempDir dir;
  write_file(dir / "most", std::string(1 << 20, 'x'));
  EXPECT_EQ(read_text_file(dir / "most", ErrorKind::data).size(), std::size_t{1} << 20);
  write_file(dir / "more", std::string((1 << 20) + 1, 'x'));
  expect_error(ErrorKind::data, {dir / "more", "1 MiB"},
               [&] { read_text_file(dir / "more", ErrorKind::data); });
}

TEST(InputFile, IsNoFolderPipeOrDevice) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  // The pipe has no writer: opening it for reading would block forever, and CTest's limit would name this
  // test.
  expect_error(ErrorKind::data, {dir / "pipe", "it is a pipe"},
               [&] { read_text_file(dir / "pipe", ErrorKind::data); });
  EXPECT_NE(InputFile(dir.path()).problem().find("folder"), std::string::npos);
  EXPECT_NE(InputFile(std::string("/dev/zero")).problem().find("device"), std::string::npos);
  EXPECT_NE(InputFile(dir / "none").problem().find("No such file"), std::string::npos);
  EXPECT_NE(InputFile(std::string()).problem().find("empty"), std::string::npos);
}

}  // namespace
}  // namespace cifar_mpi
