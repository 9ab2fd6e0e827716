#include "cifar_mpi/base/atomic_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi {
namespace {

TEST(AtomicFile, ReplacesTheContentAndLeavesNothingElse) {
  const TempDir dir;
  write_atomically(dir / "file", "a longer first version");
  write_atomically(dir / "file", "second");
  EXPECT_EQ(read_file(dir / "file"), "second");
  write_atomically(dir / "file", "");
  EXPECT_EQ(read_file(dir / "file"), "");
  EXPECT_EQ(dir.files(), 1u);
}

TEST(AtomicFile, MayHaveTheLongestName) {
  const TempDir dir;
  for (const std::size_t length : {220, 221, 246, 255}) {
    const std::string name(length, 'n');
    write_atomically(dir / name, "text");
    EXPECT_EQ(read_file(dir / name), "text");
  }
  EXPECT_EQ(dir.files(), 4u);
}

TEST(AtomicFile, CanBeTriedWithoutATrace) {
  const TempDir dir;
  write_atomically(dir / "file", "old");
  require_writable(dir / "file");
  require_writable(dir / "new");
  EXPECT_EQ(read_file(dir / "file"), "old");
  EXPECT_EQ(dir.files(), 1u);
  expect_error(ErrorKind::io, {dir / "none/file"}, [&] { require_writable(dir / "none/file"); });
  expect_error(ErrorKind::io, {"/dev/full"}, [&] { require_writable("/dev/full"); });
}

TEST(AtomicFile, HasTheUsualPermissions) {
  const TempDir dir;
  const mode_t mask = umask(022);
  write_atomically(dir / "file", "text");
  umask(mask);
  struct stat found {};
  ASSERT_EQ(stat((dir / "file").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777u, 0644u);
}

TEST(AtomicFile, WritesIntoTheCurrentFolder) {
  const TempDir dir;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  write_atomically("file", "text");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_file(dir / "file"), "text");
}

TEST(AtomicFile, NamesAMissingFolderAndThingsThatAreNoFiles) {
  const TempDir dir;
  expect_error(ErrorKind::io, {dir / "none/file"}, [&] { write_atomically(dir / "none/file", "text"); });
  expect_error(ErrorKind::io, {dir.path(), "folder"}, [&] { write_atomically(dir.path(), "text"); });
  expect_error(ErrorKind::io, {"/dev/null", "regular"}, [&] { write_atomically("/dev/null", "text"); });
}

TEST(AtomicFile, KeepsTheOldFileWhenTheWriteFails) {
  const TempDir dir;
  write_atomically(dir / "file", "old");
  const auto child = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_atomically(dir / "file", std::string(100'000, 'x'));
    } catch (const Error& error) {
      std::exit(error.kind() == ErrorKind::io &&
                        std::string(error.what()).find(dir / "file") != std::string::npos
                    ? 42
                    : 1);
    }
    std::exit(0);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(42), "");
  EXPECT_EQ(read_file(dir / "file"), "old");
  EXPECT_EQ(dir.files(), 1u) << "the temporary file is still there";
}

TEST(AtomicFile, IsCreatedByOneOfMany) {
  const TempDir dir;
  std::atomic<int> created{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&, i] {
      const std::string text(100, static_cast<char>('a' + i));
      if (!create_atomically(dir / "file", text)) return;
      ++created;
      EXPECT_EQ(read_file(dir / "file"), text);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(created, 1);
  const std::string before = read_file(dir / "file");
  EXPECT_FALSE(create_atomically(dir / "file", "late"));
  EXPECT_EQ(read_file(dir / "file"), before);
  EXPECT_EQ(dir.files(), 1u);
  expect_error(ErrorKind::io, {dir / "none/file"}, [&] { create_atomically(dir / "none/file", "text"); });
}

TEST(AtomicFile, IsReplacedByALink) {
  const TempDir dir;
  write_atomically(dir / "one", "1");
  write_atomically(dir / "link", "a file");
  for (const char* target : {"nothing", "one"}) {
    link_atomically(dir / "link", target);
    EXPECT_EQ(std::filesystem::read_symlink(dir / "link"), target);
  }
  EXPECT_EQ(read_file(dir / "link"), "1");
  std::filesystem::create_directory(dir / "folder");
  expect_error(ErrorKind::io, {dir / "folder"}, [&] { link_atomically(dir / "folder", "one"); });
  EXPECT_EQ(dir.files(), 3u) << "a temporary link is still there";
}

}  // namespace
}  // namespace cifar_mpi
