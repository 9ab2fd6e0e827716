#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

#include "cifar_mpi/base/atomic_file.hpp"
#include "support/temp_dir.hpp"

namespace {

/// A file system without hard links that is full from the first attempt to make one; or a file system with
/// links, where another user adds a second name to each file that is to be linked.
struct FileSystem {
  bool has_links = true;
  bool fills = false;
  bool neighbour = false;
};
FileSystem file_system;

}  // namespace

// The linker redirects our library's calls of linkat to this function (--wrap).
extern "C" {
int __real_linkat(int from_folder, const char* from, int to_folder, const char* to, int flags);
int __wrap_linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  if (file_system.neighbour)
    __real_linkat(from_folder, from, to_folder, (std::string(to) + ".neighbours").c_str(), flags);
  if (file_system.has_links) return __real_linkat(from_folder, from, to_folder, to, flags);
  const rlimit limit{10, 10};
  if (file_system.fills) setrlimit(RLIMIT_FSIZE, &limit);
  errno = EPERM;
  return -1;
}
}

namespace cifar_mpi {
namespace {

TEST(FileWithoutLinks, IsCreatedOnce) {
  const TempDir dir;
  file_system = {false, false, false};
  EXPECT_TRUE(create_atomically(dir / "file", "first"));
  EXPECT_FALSE(create_atomically(dir / "file", "second"));
  file_system = {};
  EXPECT_EQ(read_file(dir / "file"), "first");
  EXPECT_EQ(dir.files(), 1u);
}

TEST(FileWithLinks, IsCreatedOnceWhoeverLinksWhatIsNotYetNamed) {
  const TempDir dir;
  write_file(dir / "file", "first");
  file_system = {true, false, true};
  EXPECT_FALSE(create_atomically(dir / "file", "second"));
  file_system = {};
  EXPECT_EQ(read_file(dir / "file"), "first");
  EXPECT_EQ(read_file(dir / "file.neighbours"), "second");
}

TEST(FileWithoutLinks, LeavesNothingWhenTheWriteFails) {
  const TempDir dir;
  const auto child = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    file_system = {false, true, false};
    try {
      create_atomically(dir / "file", std::string(100, 'x'));
    } catch (const Error& error) {
      std::exit(error.kind() == ErrorKind::io ? 42 : 1);
    }
    std::exit(0);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(42), "");
  EXPECT_EQ(dir.files(), 0u);
}

}  // namespace
}  // namespace cifar_mpi
