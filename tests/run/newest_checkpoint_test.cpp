#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "run/resume.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace {

bool disk_is_broken = false;

}  // namespace

/// Replaces the C library's function: a test makes all of a file except its beginning unreadable.
extern "C" ssize_t pread(int descriptor, void* buffer, std::size_t size, off_t from) {
  static auto* const real = reinterpret_cast<decltype(&pread)>(dlsym(RTLD_NEXT, "pread"));
  if (!disk_is_broken || from == 0) return real(descriptor, buffer, disk_is_broken ? 8 : size, from);
  errno = EIO;
  return -1;
}

namespace cifar_mpi::run {
namespace {

namespace fs = std::filesystem;

class NewestCheckpoint : public testing::Test {
 protected:
  NewestCheckpoint() {
    const Directory checkpoints = checkpoint_folder(dir_.opened());
    for (const std::uint64_t step : {1, 2}) {
      Checkpoint checkpoint;
      checkpoint.state[optim::StateRole::weights] = checkpoint.state[optim::StateRole::average] = {
          {"conv1/weights", {2, 3}, "[in, out]", {1, 2, 3, 4, 5, 6}}};
      checkpoint.progress.step = step;
      checkpoint.progress.identity = {{"model", "tutorial"}};
      write_checkpoint(checkpoints / checkpoint_name(step), checkpoint);
    }
  }
  std::uint64_t newest() const {
    return newest_valid_checkpoint(dir_.opened(), Log(1))->content.progress.step;
  }
  std::string path(std::uint64_t step) const { return checkpoint_path(dir_.path(), step); }

  const TempDir dir_;
};

TEST_F(NewestCheckpoint, IsAnOlderOneWhereTheNewestIsDamagedALinkOrNoFile) {
  EXPECT_EQ(newest(), 2u);
  fs::rename(path(2), dir_ / "aside.h5");
  fs::create_symlink("../aside.h5", path(2));
  EXPECT_EQ(newest(), 1u);
  fs::remove(path(2));
  fs::copy_file(dir_ / "aside.h5", path(2));
  fs::resize_file(path(2), 1000);
  EXPECT_EQ(newest(), 1u);
  fs::remove(path(2));
  fs::create_directory(path(2));
  EXPECT_EQ(newest(), 1u);
}

TEST_F(NewestCheckpoint, IsNoOlderOneWhereTheNewestCannotBeRead) {
  fs::resize_file(path(2), 1000);
  disk_is_broken = true;
  expect_error(ErrorKind::io, {path(2), "Input/output error", "older"}, [&] { newest(); });
  disk_is_broken = false;
  EXPECT_EQ(newest(), 1u);
}

}  // namespace
}  // namespace cifar_mpi::run
