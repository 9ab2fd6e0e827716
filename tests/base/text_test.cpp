#include "cifar_mpi/base/text.hpp"

#include <gtest/gtest.h>

#include <string>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/run_fingerprint.hpp"
#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/base/terminal.hpp"

namespace cifar_mpi {
namespace {

/// The output of `write` to a log of this rank.
template <class Write>
std::string written(int rank, Write write) {
  std::FILE* const file = std::tmpfile();
  write(Log(rank, file));
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  const std::size_t got = std::fread(text.data(), 1, text.size(), file);
  std::fclose(file);
  return text.substr(0, got);
}

TEST(Concat, WritesEveryArgument) { EXPECT_EQ(concat("a", 1, ' ', 2.5, std::string("b")), "a1 2.5b"); }

TEST(Shape, KnowsItsRankAndCount) {
  const Shape weights{5, 5, 3, 64};
  EXPECT_EQ(weights.rank(), 4);
  EXPECT_EQ(weights[3], 64);
  EXPECT_EQ(weights.count(), 4800);
  EXPECT_EQ(Shape().count(), 1);
  EXPECT_EQ((Shape{3, 0}).count(), 0);
  EXPECT_EQ((Shape{1 << 20, 1 << 20}).count(), std::int64_t{1} << 40);
}

TEST(Shape, DiffersByRankEvenWithEqualCounts) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{6}), (Shape{6, 1}));
}

TEST(Shape, ReadsAsAList) {
  EXPECT_EQ(to_string(Shape{5, 5, 3, 64}), "[5, 5, 3, 64]");
  EXPECT_EQ(to_string(Shape{10}), "[10]");
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(Extent, ReadsAsHeightWidthChannels) {
  EXPECT_EQ(to_string(Extent{32, 24, 3}), "32x24x3");
  EXPECT_EQ((Extent{32, 24, 3}).count(), 2304);
}

TEST(Error, CarriesItsExitCodeAndText) {
  const Error error(ErrorKind::data, "no such file");
  EXPECT_EQ(exit_code(error.kind()), 3);
  EXPECT_STREQ(error.what(), "no such file");
  EXPECT_EQ(exit_code(ErrorKind::stopped), 75);
}

TEST(Log, SpeaksOnRankZeroOnly) {
  const auto line = [](const Log& log) { log.info("one line"); };
  EXPECT_EQ(written(0, line), "one line\n");
  EXPECT_EQ(written(1, line), "");
}

TEST(Clock, NeverRunsBackwards) {
  const double before = steady_seconds();
  EXPECT_GE(steady_seconds(), before);
}

TEST(Clock, WritesWallTimeToTheMillisecond) {
  const std::string now = wall_time();
  const std::string pattern = "dddd-dd-dd dd:dd:dd.ddd";
  ASSERT_EQ(now.size(), pattern.size()) << now;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const bool digit = now[i] >= '0' && now[i] <= '9';
    EXPECT_TRUE(pattern[i] == 'd' ? digit : now[i] == pattern[i]) << now;
  }
}

TEST(ShellWord, StandsForItselfInAnyShell) {
  EXPECT_EQ(shell_word("runs/a-1.h5"), "runs/a-1.h5");
  EXPECT_EQ(shell_word("a b; rm 'c'"), "'a b; rm '\\''c'\\'''");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(RunFingerprint, ComesOutOfItsPackedTextAsItWentIn) {
  const RunFingerprint items{{"--lr", "0.1"}, {"empty", ""}, {"kernels", "a = b\nc"}, {"", "nameless"}};
  EXPECT_EQ(unpack(pack(items)), items);
  EXPECT_EQ(unpack(pack({})), RunFingerprint());
}

TEST(RunFingerprint, FindsAnItemByItsWholeName) {
  const RunFingerprint items{{"--lr-scaling", "none"}, {"--lr", "0.1"}};
  ASSERT_NE(find_item(items, "--lr"), nullptr);
  EXPECT_EQ(*find_item(items, "--lr"), "0.1");
  EXPECT_EQ(find_item(items, "--l"), nullptr);
}

TEST(RunFingerprint, ReadsNumbersThatAreNothingElse) {
  const RunFingerprint items{{"ranks", "12"}, {"lr", "0.1"}, {"threads", "4 "}, {"empty", ""}};
  EXPECT_EQ(find_number(items, "ranks"), 12);
  for (const char* item : {"lr", "threads", "empty", "steps"}) {
    EXPECT_EQ(find_number(items, item), std::nullopt) << item;
  }
}

}  // namespace
}  // namespace cifar_mpi
