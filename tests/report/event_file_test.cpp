#include "report/event_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>

#include "support/contains.hpp"
#include "support/event_reader.hpp"
#include "support/file_size_limit.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::report {
namespace {

using test::event_files;
using test::EventRead;
using test::FileSizeLimit;
using test::read_events;

Event scalar_at(std::uint64_t step) {
  Summary summary;
  summary.scalar("loss", 1.0 / static_cast<double>(step));
  return summary.at(step);
}

/// The steps of the scalars in a file.
std::vector<std::uint64_t> steps_in(const std::string& path) {
  std::vector<std::uint64_t> steps;
  for (const EventRead& event : read_events(path)) {
    if (!event.scalars.empty()) steps.push_back(event.step);
  }
  return steps;
}

TEST(MaskedCrc32c, IsThatOfTensorFlow) {
  EXPECT_EQ(masked_crc32c("\x1a\x11"
                          "CRC test, one two"),
            0x5794d08au);
  constexpr std::uint32_t kCheck = 0xE3069283;  // CRC-32C of these digits (RFC 3720)
  EXPECT_EQ(masked_crc32c("123456789"), (kCheck >> 15 | kCheck << 17) + 0xa282ead8u);
}

/// A Python that has crc32c, or nothing: the first in PATH is not always the system's.
std::string python_with_crc32c() {
  for (const std::string python : {"python3", "/usr/bin/python3"}) {
    if (std::system((python + " -c 'import crc32c' 2>/dev/null").c_str()) == 0) return python;
  }
  return {};
}

TEST(EventFile, HasTheChecksumsThatAnotherProgramFinds) {
  const std::string python = python_with_crc32c();
  if (python.empty())
    GTEST_SKIP()
        << "no Python with crc32c here (Debian and Ubuntu: python3-crc32c), so checksums were not compared";
  const TempDir folder;
  {
    EventFile file(folder / "board", 1, {}, Log(0));
    for (std::uint64_t step = 1; step <= 50; ++step) {
      Summary summary;
      summary.text("text", std::string(7 * step, static_cast<char>(step)));  // of all lengths by eight
      file.write(summary.at(step));
    }
  }
  write_file(folder / "check.py", R"(
import crc32c, struct, sys
data, at, records = open(sys.argv[1], "rb").read(), 0, 0
def masked(part):
    crc = crc32c.crc32c(part)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff
while at < len(data):
    length, crc = struct.unpack_from("<QI", data, at)
    assert crc == masked(data[at:at + 8]), f"length of record {records}"
    content = data[at + 12:at + 12 + length]
    assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(content), f"record {records}"
    at += 16 + length
    records += 1
sys.exit(records != 52)
)");
  const std::string command =
      python + " '" + folder / "check.py" + "' '" + event_files(folder / "board").at(0) + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(EventFile, BeginsWithTheVersionAndTheStart) {
  const TempDir folder;
  const EventFile file(folder / "board", 41, {{0, EventKind::graph_def, "a graph"}}, Log(0));
  const std::vector<std::string> paths = event_files(folder / "board");
  ASSERT_EQ(paths.size(), 1u);
  EXPECT_TRUE(
      std::regex_search(paths[0], std::regex("/events\\.out\\.tfevents\\.[0-9]{10}\\.[A-Za-z0-9-]+\\." +
                                             std::to_string(getpid()) + "\\.0$")))
      << paths[0];
  const std::vector<EventRead> events = read_events(paths[0]);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_TRUE(events[1].start);
  EXPECT_EQ(events[1].step, 41u);
  EXPECT_EQ(events[2].graph_def, "a graph");
  const auto now = static_cast<double>(std::time(nullptr));
  for (const EventRead& event : events) EXPECT_NEAR(event.wall_time, now, 60.0);
}

TEST(EventFile, IsReadUpToTheLastWholeEventWhereverItIsCut) {
  const TempDir folder;
  EventFile file(folder / "board", 1, {}, Log(0));
  const std::string path = event_files(folder / "board").at(0);
  std::vector<std::size_t> ends{0};
  const auto note_end = [&] { ends.push_back(std::filesystem::file_size(path)); };
  for (const std::uint64_t step : {1, 2, 3}) {
    file.write(scalar_at(step));
    note_end();  // nothing is held back
  }
  const std::string whole = read_file(path);
  ASSERT_EQ(test::read_records(whole).size(), 5u);
  for (std::size_t cut = ends[1]; cut <= whole.size(); ++cut) {
    const auto there =
        std::count_if(ends.begin() + 1, ends.end(), [&](std::size_t end) { return end <= cut; });
    ASSERT_EQ(test::read_records(std::string_view(whole).substr(0, cut)).size(),
              2u + static_cast<std::size_t>(there))
        << "cut after byte " << cut;
  }
  for (std::size_t cut = 0; cut < ends[1]; ++cut)
    ASSERT_LE(test::read_records(std::string_view(whole).substr(0, cut)).size(), 2u);
}

TEST(EventFile, ComesAfterAllOthersByNameWhateverClocksSay) {
  const TempDir folder;
  std::filesystem::create_directory(folder / "board");
  const std::string ahead = folder / "board/events.out.tfevents.9000000000.other-host.1.0";
  write_file(ahead, "");
  for (const char* foreign :
       {"events.out.tfevents.9999999999.x.1.0", "events.out.tfevents.95000000000.x.1.0", "notes"})
    write_file(folder / (std::string("board/") + foreign), "");
  std::string before = ahead;
  for (int start = 0; start < 3; ++start) {
    EventFile file(folder / "board", 1, {}, Log(0));
    file.write(scalar_at(static_cast<std::uint64_t>(start) + 1));
    std::string mine;
    for (const std::string& path : event_files(folder / "board")) {
      if (std::filesystem::file_size(path) > 0 && path > before) mine = path;
    }
    ASSERT_FALSE(mine.empty()) << "start " << start << " wrote no file after " << before;
    EXPECT_EQ(steps_in(mine), std::vector<std::uint64_t>{static_cast<std::uint64_t>(start) + 1});
    before = mine;
  }
}

TEST(EventFile, WarnsOnceWhenItCannotWriteAndLeavesNoEventTorn) {
  const TempDir folder;
  EventFile file(folder / "board", 1, {}, Log(0));
  const std::string path = event_files(folder / "board").at(0);
  for (int i = 0; i < 10; ++i) file.write(scalar_at(1));  // what is captured is a file under the same limit
  testing::internal::CaptureStderr();
  {
    const FileSizeLimit limit(std::filesystem::file_size(path) + 7);
    for (const std::uint64_t step : {2, 3, 4}) file.write(scalar_at(step));
  }
  const std::string warnings = testing::internal::GetCapturedStderr();
  file.write(scalar_at(5));
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_TRUE(warnings.starts_with("warning: cannot write " + path + ": ")) << warnings;
  std::vector<std::uint64_t> wanted(10, 1);
  wanted.push_back(5);
  EXPECT_EQ(steps_in(path), wanted);
}

TEST(EventFile, HasItsHeadFirstAlsoWhenThereWasNoRoomForItAtOnce) {
  const TempDir folder;
  testing::internal::CaptureStderr();
  std::optional<EventFile> file;
  {
    const FileSizeLimit limit(20);
    file.emplace(folder / "board", 7, std::vector<Event>{{0, EventKind::graph_def, "a graph"}}, Log(0));
    file->write(scalar_at(7));
  }
  EXPECT_NE(testing::internal::GetCapturedStderr(), "");
  file->write(scalar_at(8));
  file->write(scalar_at(9));
  const std::string path = event_files(folder / "board").at(0);
  const std::vector<EventRead> events = read_events(path);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_TRUE(events[1].start);
  EXPECT_EQ(events[2].graph_def, "a graph");
  EXPECT_EQ(steps_in(path), (std::vector<std::uint64_t>{8, 9}));
}

/// The message on standard error when its folder is not writable.
std::string warning_for(const std::string& folder) {
  testing::internal::CaptureStderr();
  EventFile file(folder, 1, {}, Log(0));
  file.write(scalar_at(1));
  EXPECT_FALSE(file);
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_TRUE(warnings.starts_with("warning: cannot write " + folder + ": ")) << warnings;
  EXPECT_TRUE(contains(warnings, "; training continues"));
  return warnings;
}

TEST(EventFile, WarnsWhereItsFolderCannotBeMade) {
  const TempDir folder;
  EXPECT_TRUE(contains(warning_for(folder / "none/board"), "No such file"));
  write_file(folder / "file", "mine");
  EXPECT_TRUE(contains(warning_for(folder / "file"), "it is not a folder"));
  EXPECT_EQ(read_file(folder / "file"), "mine");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0666), 0);
  warning_for(folder / "pipe");
}

TEST(EventFile, WritesThroughNoLinkAndIntoNothingThatIsThere) {
  const TempDir folder;
  std::filesystem::create_directory(folder / "elsewhere");
  std::filesystem::create_directory_symlink(folder / "elsewhere", folder / "board");
  EXPECT_TRUE(contains(warning_for(folder / "board"), "symbolic link"));
  EXPECT_TRUE(event_files(folder / "elsewhere").empty());
  // Names that it could use next.
  std::filesystem::create_directory(folder / "names");
  const std::string first = folder / "names";
  { const EventFile file(first, 1, {}, Log(0)); }
  const std::string taken = event_files(first).at(0);
  std::filesystem::remove(taken);
  write_file(folder / "mine", "mine");
  std::filesystem::create_symlink(folder / "mine", taken);
  EventFile file(first, 1, {}, Log(0));
  file.write(scalar_at(1));
  EXPECT_EQ(read_file(folder / "mine"), "mine");
  EXPECT_EQ(steps_in(event_files(first).at(1)), std::vector<std::uint64_t>{1});
}

}  // namespace
}  // namespace cifar_mpi::report
