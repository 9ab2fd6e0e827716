#include "cifar_mpi/base/log.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

#include "support/temp_dir.hpp"

namespace cifar_mpi {
namespace {

TEST(Printable, LeavesWhatPeopleWrite) {
  for (const char* text :
       {"", "airplane", "größer, naïve, Ελλάδα, 漢字, 🚀", "C:\\folder", "a\u00a0b \"quoted\" ~"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, ShowsWhatWouldSteerATerminalOrBeginALine) {
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb\\tc\\x0dd");
  EXPECT_EQ(printable("\x1b[2J\x1b]0;title\a\x7f"), "\\x1b[2J\\x1b]0;title\\x07\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("C1 \u009b31m and \u0085 but \u00a1"), "C1 \\xc2\\x9b31m and \\xc2\\x85 but \u00a1");
  EXPECT_EQ(printable("turned \u202egnp.exe\u2066 \u2028"),
            "turned \\xe2\\x80\\xaegnp.exe\\xe2\\x81\\xa6 \\xe2\\x80\\xa8");
}

TEST(Printable, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\\x9b31m");
  EXPECT_EQ(printable("\xc0\xaf \xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xff"),
            "\\xc0\\xaf \\xe0\\x80\\x80 \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80 \\xff");
  EXPECT_EQ(printable("cut \xe2\x80"), "cut \\xe2\\x80");
}

TEST(WriteFlushed, IsLoggingWhileItsReaderTakesNothing) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::FILE* const out = fdopen(ends[1], "w");
  const std::string text(1 << 20, 'x');  // more than a pipe holds
  std::thread writer([&] { write_flushed(out, text); });
  while (!is_logging()) std::this_thread::yield();
  std::string read(text.size(), '\0');
  std::size_t done = 0;
  while (done < read.size()) {
    const ssize_t n = ::read(ends[0], read.data() + done, read.size() - done);
    ASSERT_GT(n, 0);
    done += static_cast<std::size_t>(n);
  }
  writer.join();
  EXPECT_FALSE(is_logging());
  EXPECT_EQ(read, text);
  std::fclose(out);
  close(ends[0]);
}

TEST(Log, WritesEachTextOnOneHarmlessLine) {
  const TempDir dir;
  std::FILE* const out = std::fopen((dir / "out").c_str(), "w");
  Log(0, out).info("one\n== all is well\x1b[1A");
  Log(1, out).info("not from this rank");
  std::fclose(out);
  EXPECT_EQ(read_file(dir / "out"), "one\\n== all is well\\x1b[1A\n");
  testing::internal::CaptureStderr();
  Log().warn("a\nb");
  Log(2).every_rank("a\nb");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: a\\nb\n[rank 2] a\\nb\n");
}

}  // namespace
}  // namespace cifar_mpi
