#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <string>

#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"
#include "support/temp_dir.hpp"

namespace {

/// Whether the memory that holds a file refuses to grow.
bool refuses = false;

}  // namespace

// The linker redirects our library's calls of realloc to this function (--wrap), not HDF5's.
extern "C" {
void* __real_realloc(void* memory, std::size_t size);
void* __wrap_realloc(void* memory, std::size_t size) {
  return refuses ? nullptr : __real_realloc(memory, size);
}
}

namespace cifar_mpi::hdf5 {
namespace {

/// Writes a file whose memory refuses to grow before it is closed, or during closing; exits with 42 when that
/// became an error.
[[noreturn]] void write_refused(bool in_closing, bool saves, const std::string& path) {
  bool failed = false;
  {
    Writer file;
    refuses = !in_closing;
    try {
      for (int i = 0; i < 80; ++i) {  // 4.8 MB: more than the initial memory, less than HDF5 buffers
        const std::string group = concat("/", i);
        file.group(group);
        file.attribute(group, "text", std::string(60'000, 'x'));
      }
      refuses = true;
      if (saves) file.save(path);
    } catch (const Error& error) {
      failed = error.kind() == ErrorKind::io;
    }
  }
  refuses = false;
  std::exit(failed || !saves ? 42 : 1);  // runs HDF5's exit handlers
}

TEST(Hdf5Writer, ExitsInOrderWhenTheMemoryRefuses) {
  const TempDir dir;
  for (const bool in_closing : {false, true}) {
    for (const bool saves : {false, true}) {
      EXPECT_EXIT(write_refused(in_closing, saves, dir / "file.h5"), testing::ExitedWithCode(42), "^$")
          << in_closing << saves;
    }
  }
  EXPECT_EQ(dir.files(), 0u);
}

}  // namespace
}  // namespace cifar_mpi::hdf5
