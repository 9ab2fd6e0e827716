#include "cifar_mpi/base/directory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> sorted_names(const Directory& directory) {
  std::vector<std::string> names = directory.names();
  std::sort(names.begin(), names.end());
  return names;
}

/// A directory that is moved away while it is open, and a link to another one in its place.
class ExchangedFolder : public testing::Test {
 protected:
  ExchangedFolder() {
    fs::create_directory(dir_ / "ours");
    fs::create_directory(dir_ / "theirs");
    for (const char* name : {"file", "link"}) write_file(dir_ / (std::string("theirs/") + name), "theirs");
    ours_ = Directory(dir_ / "ours");
    fs::rename(dir_ / "ours", dir_ / "aside");
    fs::create_directory_symlink("theirs", dir_ / "ours");
  }
  const TempDir dir_;
  Directory ours_;
};

TEST_F(ExchangedFolder, IsStillTheOneThatWasOpened) {
  EXPECT_FALSE(exists(ours_ / "file"));
  EXPECT_FALSE(read_small_file(ours_ / "file"));
  EXPECT_TRUE(InputFile(ours_ / "file").missing());
  EXPECT_FALSE(remove_file(ours_ / "file"));
  write_atomically(ours_ / "file", "ours");
  EXPECT_TRUE(create_atomically(ours_ / "created", "ours"));
  link_atomically(ours_ / "link", "file");
  EXPECT_EQ(read_link(ours_ / "link"), "file");
  EXPECT_EQ(read_small_file(ours_ / "file")->content, "ours");
  ::close(open_file(ours_ / "appended", O_WRONLY | O_CREAT).release());
  Directory::make(ours_ / "folder");
  EXPECT_EQ(sorted_names(ours_), (std::vector<std::string>{"appended", "created", "file", "folder", "link"}));
  EXPECT_EQ(sorted_names(Directory(dir_ / "theirs")), (std::vector<std::string>{"file", "link"}));
  for (const char* name : {"file", "link"})
    EXPECT_EQ(read_file(dir_ / (std::string("theirs/") + name)), "theirs");
}

TEST(Directory, IsReachedThroughLinksByPathAndThroughNoneByName) {
  const TempDir dir;
  fs::create_directory(dir / "folder");
  fs::create_directory_symlink("folder", dir / "link");
  EXPECT_NO_THROW(Directory(dir / "link"));
  for (const char* name : {"link", "gone"}) {
    expect_error(ErrorKind::io, {dir / name}, [&] { Directory(dir.opened() / name); });
  }
  expect_error(ErrorKind::io, {"link: it is a symbolic link"},
               [&] { Directory::make(dir.opened() / "link"); });
  write_file(dir / "file", "");
  expect_error(ErrorKind::io, {dir / "file: it is not a folder"}, [&] { Directory(dir / "file"); });
  expect_error(ErrorKind::io, {dir / "file"}, [&] { Directory::make(dir / "file/in/it"); });
  Directory::make(dir / "a/b/c");
  EXPECT_TRUE(fs::is_directory(dir / "a/b/c"));
}

TEST(Directory, TakesNamesAndNoPaths) {
  const TempDir dir;
  for (const char* name : {"", ".", "..", "a/b", "/etc", "../x"})
    EXPECT_THROW(static_cast<void>(dir.opened() / name), std::logic_error) << name;
  const Directory same(dir.path() + "//");
  EXPECT_EQ((same / "a").path(), dir / "a");
  EXPECT_EQ((same / "a" + ".b").path(), dir / "a.b");
}

TEST(Directory, IsNoneUntilItIsOpened) {
  const Directory none;
  EXPECT_FALSE(none);
  EXPECT_FALSE(exists(none / "etc"));
  expect_error(ErrorKind::io, {"/file"}, [&] { write_atomically(none / "file", "text"); });
}

TEST(InputFile, IsNoLinkByNameAndMayBeOneByPath) {
  const TempDir dir;
  write_file(dir / "file", "text");
  fs::create_symlink("file", dir / "link");
  fs::create_symlink("circle", dir / "circle");
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(InputFile(dir / "link").problem(), "");
  EXPECT_TRUE(contains(InputFile(dir.opened() / "link").problem(), "symbolic link"));
  EXPECT_EQ(InputFile(dir.opened() / "link").fault(), "") << "what a stranger put there";
  EXPECT_EQ(InputFile(dir.opened() / "pipe").fault(), "");
  EXPECT_NE(InputFile(dir.opened() / "pipe").problem(), "");
  EXPECT_NE(InputFile(dir / "circle").fault(), "");
  EXPECT_EQ(InputFile(dir.opened() / "file").fault(), "");
  EXPECT_TRUE(InputFile(dir.opened() / "none").missing());
}

/// Opened, exchanged, and then read: the opened one is read.
TEST(InputFile, IsWhatWasOpened) {
  const TempDir dir;
  write_file(dir / "file", "first");
  const InputFile file(dir.opened() / "file");
  fs::remove(dir / "file");
  write_file(dir / "file", "later");
  char text[5] = {};
  ASSERT_EQ(::pread(file.descriptor(), text, sizeof text, 0), 5);
  EXPECT_EQ(std::string(text, sizeof text), "first");
}

}  // namespace
}  // namespace cifar_mpi
