#include "run/self_check_record.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temp_dir.hpp"

namespace cifar_mpi::run {
namespace {

TEST(SelfCheckRecord, ComesBackAsItWasWritten) {
  const TempDir folder;
  EXPECT_FALSE(read_self_check(folder.opened()));
  write_self_check(folder.opened(),
                   {SelfCheckResult::running, "0123", "2026-11-23 02:30:00.123", "node1: a GPU"});
  write_self_check(folder.opened(), {SelfCheckResult::failed, "4567", "2026-11-23 02:31:00.456", "a\nb\n"});
  const auto record = read_self_check(folder.opened());
  ASSERT_TRUE(record);
  EXPECT_EQ(record->result, SelfCheckResult::failed);
  EXPECT_EQ(record->key, "4567");
  EXPECT_EQ(record->time, "2026-11-23 02:31:00.456");
  EXPECT_EQ(record->text, "a\nb\n");
}

TEST(SelfCheckRecord, SaysHungOfWhatRanOnly) {
  const TempDir folder;
  note_hung_self_check(folder.opened());
  EXPECT_FALSE(read_self_check(folder.opened()));
  using enum SelfCheckResult;
  for (const auto& [result, hung_now] :
       {std::pair{running, hung}, {running_again, hung_twice}, {passed, passed}, {on_lanes, on_lanes}}) {
    write_self_check(folder.opened(), {result, "0123", "2026-11-23 02:30:00.123", "node1: a GPU"});
    note_hung_self_check(folder.opened());
    const SelfCheckRecord record = read_self_check(folder.opened()).value();
    EXPECT_EQ(record.result, hung_now);
    EXPECT_EQ(record.text, "node1: a GPU");
  }
}

TEST(SelfCheckRecord, KnowsNothingOfWhatIsNoRecord) {
  const TempDir folder;
  for (const std::string content :
       {"", "passed", "passed 0123", "perhaps 0123 now\n", "\n\n", " passed 0123 now", "pass\0ed 0123 now"}) {
    std::ofstream(folder.path() + "/self_check") << content;
    EXPECT_FALSE(read_self_check(folder.opened())) << content;
  }
  std::filesystem::remove(folder.path() + "/self_check");
  std::filesystem::create_directory(folder.path() + "/self_check");
  EXPECT_FALSE(read_self_check(folder.opened()));
}

}  // namespace
}  // namespace cifar_mpi::run
