#include "app/pack_progress.hpp"

#include <gtest/gtest.h>

#include "support/contains.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::app {
namespace {

TEST(ProgressText, SaysHowMuchIsDoneAndLeft) {
  EXPECT_EQ(progress_text(1234, 30000, 4.0), "reading: 1234 of 30000 images (4 %), 308 images/s, 1:33 left");
  EXPECT_EQ(progress_text(0, 30000, 4.0), "reading: 0 of 30000 images (0 %), 0 images/s");
  EXPECT_EQ(progress_text(10, 10, 0.5), "reading: 10 of 10 images (100 %), 20 images/s, 0:00 left");
}

/// Output while three images are read.
std::string written(int columns, double interval_s) {
  const TempDir dir;
  std::FILE* const out = std::fopen((dir / "out").c_str(), "w");
  {
    PackProgress progress(3, columns, interval_s, out);
    for (std::uint64_t done = 1; done <= 3; ++done) progress.show(done);
  }
  std::fclose(out);
  return read_file(dir / "out");
}

TEST(PackProgress, IsALineEachWithoutATerminal) {
  const std::string text = written(0, 0.0);
  EXPECT_EQ(text.find("reading: 1 of 3 images (33 %)"), 0u) << text;
  EXPECT_TRUE(contains(text, "\nreading: 3 of 3 images (100 %)"));
  EXPECT_EQ(text.find('\r'), std::string::npos) << text;
}

TEST(PackProgress, IsOneMovingLineOnATerminal) {
  const std::string text = written(20, 0.0);
  EXPECT_EQ(text.find("\r\033[Kreading: 1 of 3 ima\r\033[K"), 0u) << text;
  EXPECT_TRUE(text.ends_with("\r\033[K")) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(PackProgress, IsSilentUntilTheIntervalIsOver) { EXPECT_EQ(written(0, 100.0) + written(80, 100.0), ""); }

}  // namespace
}  // namespace cifar_mpi::app
