#include "report/perfetto.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "report/trace_file.hpp"
#include "support/contains.hpp"
#include "support/file_size_limit.hpp"
#include "support/temp_dir.hpp"
#include "support/trace_reader.hpp"

namespace cifar_mpi::report {
namespace {

constexpr std::int64_t kStart = 5'000'000'000;

/// Two layers with a bucket each; the first one is summed during the second one's backward.
Timeline head() {
  using engine::TaskKind;
  Timeline timeline;
  timeline.program = "train";
  timeline.images_per_rank = 64;
  timeline.tasks = {
      {"backward 2", 0, TaskKind::work, 0, {}},         {"sum 2", 1, TaskKind::collective, 4096, {0}},
      {"backward 1", 0, TaskKind::work, 0, {}},         {"weights", 2, TaskKind::work, 0, {}},
      {"sum 1", 1, TaskKind::collective, 1024, {2, 3}}, {"update", 0, TaskKind::work, 0, {1, 4}}};
  timeline.hosts = {"node1", "node2"};
  timeline.clock_uncertainty_ns = {0, 1500};
  return timeline;
}

/// As a host runs it: `sum 2` moves between the pieces of `backward 1`, `sum 1` is waited for in one stretch.
RankStep host_step(std::int64_t from) {
  return {from,
          from + 1000,
          {{0, from + 10, from + 100},
           {1, from + 100, from + 110},
           {2, from + 110, from + 200},
           {1, from + 200, from + 205},
           {2, from + 205, from + 300},
           {1, from + 300, from + 320},
           {3, from + 320, from + 400},
           {4, from + 400, from + 600},
           {5, from + 600, from + 700}}};
}

/// As a device runs it: lanes overlap.
RankStep device_step(std::int64_t from) {
  return {from,
          from + 900,
          {{0, from, from + 100},
           {1, from + 100, from + 350},
           {2, from + 100, from + 300},
           {3, from + 120, from + 320},
           {4, from + 350, from + 600},
           {5, from + 600, from + 700}},
          3};
}

Timeline::Step host_steps(std::uint64_t number, std::int64_t from) {
  return {number, {host_step(from), host_step(from + 50)}};
}

std::vector<std::string> names(const std::vector<test::TraceSlice>& slices) {
  std::vector<std::string> found;
  for (const test::TraceSlice& slice : slices)
    found.push_back(std::string(2 * static_cast<std::size_t>(slice.depth), ' ') + slice.name);
  return found;
}

using Names = std::vector<std::string>;

TEST(Perfetto, HasAProcessForEachRankAndATrackForEachLane) {
  const test::TraceRead trace = test::read_trace(PerfettoTrace(head()).begin());
  std::set<std::string> paths;
  std::set<std::uint64_t> pids, sequences;
  for (const auto& [uuid, track] : trace.tracks) {
    EXPECT_TRUE(paths.insert(trace.path(uuid)).second) << trace.path(uuid) << " is there twice";
    if (!track.process.empty()) {
      EXPECT_TRUE(pids.insert(track.pid).second);
      EXPECT_GT(track.pid, 0u) << "process 0 is the idle one";
    }
    sequences.insert(track.sequence);
  }
  std::set<std::string> expected{"images per second", "loss"};
  for (const std::string rank : {"rank 0 on node1", "rank 1 on node2"}) {
    expected.insert(rank);
    for (const char* track : {"steps", "bytes in flight", "compute", "comm", "side 0"})
      expected.insert(rank + "/" + track);
  }
  EXPECT_EQ(paths, expected);
  EXPECT_EQ(sequences.size(), 2u);
}

TEST(Perfetto, NestsThePollsOfACollectiveInItsSlice) {
  const PerfettoTrace perfetto(head());
  const test::TraceRead trace =
      test::read_trace(perfetto.begin() + perfetto.step(host_steps(99, kStart), {}));
  for (const std::string rank : {"rank 0 on node1", "rank 1 on node2"}) {
    EXPECT_EQ(names(trace.on(rank + "/compute")), (Names{"backward 2", "backward 1", "update"}));
    EXPECT_EQ(names(trace.on(rank + "/side 0")), Names{"weights"});
    EXPECT_EQ(names(trace.on(rank + "/comm")), (Names{"sum 2", "  start", "  poll", "  poll", "sum 1"}));
    EXPECT_EQ(names(trace.on(rank + "/steps")), Names{"step 100"}) << "as log lines count";
  }
  const auto from = static_cast<std::uint64_t>(kStart);
  const std::vector<test::TraceSlice> comm = trace.on("rank 0 on node1/comm");
  EXPECT_EQ(comm[0].begin, from + 100);
  EXPECT_EQ(comm[0].end, from + 320);
  EXPECT_EQ(comm[0].category, "collective");
  EXPECT_EQ(comm[0].notes.at("bytes"), 4096);
  EXPECT_EQ(comm[0].notes.at("own run time in ns"), 35);
  EXPECT_EQ(comm[2].begin, from + 200);
  EXPECT_EQ(comm[2].end, from + 205);
  const test::TraceSlice interrupted = trace.on("rank 0 on node1/compute")[1];
  EXPECT_EQ(interrupted.begin, from + 110);
  EXPECT_EQ(interrupted.end, from + 300);
  EXPECT_EQ(interrupted.notes.at("own run time in ns"), 185);
  EXPECT_EQ(interrupted.category, "work");
}

TEST(Perfetto, LetsTheLanesOfADeviceOverlap) {
  const PerfettoTrace perfetto(head());
  const Timeline::Step step{0, {device_step(kStart), {}}};  // of rank 1 there is nothing
  const test::TraceRead trace = test::read_trace(perfetto.begin() + perfetto.step(step, {}));
  for (const test::TraceSlice& slice : trace.slices) {
    EXPECT_EQ(slice.depth, 0) << slice.name;
    EXPECT_TRUE(trace.path(slice.track).starts_with("rank 0"));
  }
  EXPECT_EQ(trace.slices.size(), 7u);
  EXPECT_EQ(trace.on("rank 0 on node1/steps")[0].notes.at("stretches dropped"), 3);
}

TEST(Perfetto, DrawsArrowsFromTheLastWritersToTheirSumAndThroughItsRanks) {
  const PerfettoTrace perfetto(head());
  const test::TraceRead trace = test::read_trace(perfetto.begin() + perfetto.step(host_steps(7, kStart), {}) +
                                                 perfetto.step(host_steps(8, kStart + 1000), {}));
  std::map<std::uint64_t, Names> arrows;
  for (const test::TraceSlice& slice : trace.slices) {
    for (const std::uint64_t id : slice.flows)
      arrows[id].push_back(slice.name + " of " + std::to_string(slice.sequence));
  }
  std::multiset<Names> found;
  for (const auto& [id, stations] : arrows) found.insert(stations);
  std::multiset<Names> expected;
  for (int step = 0; step < 2; ++step) {
    for (const std::string rank : {" of 1", " of 2"}) {
      expected.insert({"backward 2" + rank, "sum 2" + rank});
      expected.insert({"backward 1" + rank, "sum 1" + rank});
      expected.insert({"weights" + rank, "sum 1" + rank});
    }
    for (const std::string sum : {"sum 1", "sum 2"}) expected.insert({sum + " of 1", sum + " of 2"});
  }
  EXPECT_EQ(found, expected);
}

TEST(Perfetto, CountsBytesInFlightImagesAndTheLoss) {
  const PerfettoTrace perfetto(head());
  const test::TraceRead trace = test::read_trace(
      perfetto.begin() + perfetto.step({3, {device_step(kStart), device_step(kStart)}}, 2.5));
  std::vector<double> bytes;
  for (const test::TracePoint& point : trace.values("rank 1 on node2/bytes in flight"))
    bytes.push_back(point.value);
  EXPECT_EQ(bytes, (std::vector<double>{4096, 1024, 0}));
  const std::vector<test::TracePoint> images = trace.values("images per second");
  ASSERT_EQ(images.size(), 1u);
  EXPECT_DOUBLE_EQ(images[0].value, 128 / 900e-9);
  EXPECT_EQ(images[0].time, static_cast<std::uint64_t>(kStart));
  ASSERT_EQ(trace.values("loss").size(), 1u);
  EXPECT_EQ(trace.values("loss")[0].value, 2.5);
  EXPECT_EQ(trace.on("rank 1 on node2/steps")[0].notes.at("clock uncertainty in ns"), 1500);
}

TEST(Perfetto, HasNoNumbersThatPerfettoDoesNotKnow) {
  if (std::system("protoc --version >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "no protoc here (Debian and Ubuntu: protobuf-compiler)";
  const TempDir folder;
  const PerfettoTrace perfetto(head());
  write_file(folder / "trace", perfetto.begin() + perfetto.step(host_steps(99, kStart), 2.5));
  const std::string protos = std::string(CIFAR_MPI_SOURCE_ROOT) + "/tests/report";
  const std::string command = "protoc --decode=Trace -I '" + protos + "' '" + protos + "/perfetto.proto' <'" +
                              (folder / "trace") + "' >'" + (folder / "text") + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const std::string text = read_file(folder / "text");
  EXPECT_FALSE(std::regex_search(text, std::regex("(^|\n) *[0-9]+[:{ ]"))) << text;
  for (const char* part : {"process_name: \"rank 1 on node2\"", "unit: UNIT_SIZE_BYTES", "name: \"step 100\"",
                           "type: TYPE_SLICE_BEGIN", "double_counter_value: 2.5", "timestamp: 5000000400"})
    EXPECT_TRUE(contains(text, part));
}

/// RUN_DIR/trace.
class Traces : public testing::Test {
 protected:
  std::string warnings_of(const std::function<void()>& action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
  }
  void expect_one_warning(const std::string& reason, const std::function<void()>& action) {
    const std::string warnings = warnings_of(action);
    EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
    EXPECT_TRUE(contains(warnings, reason));
    EXPECT_TRUE(contains(warnings, "training continues"));
  }
  /// In three pieces.
  std::string write() {
    TraceFile file(folder_ / "trace", 12, Log());
    for (int piece = 0; piece < 3; ++piece) file.append(std::string(1000, 'x'));
    return file.finish();
  }
  const TempDir folder_;
  const std::string path_ = folder_ / "trace/step_12.perfetto-trace";
};

TEST_F(Traces, AreThereWhenTheyAreWhole) {
  write_file(folder_ / "secret", "mine");
  std::filesystem::create_directory(folder_ / "trace");
  std::filesystem::create_symlink(folder_ / "secret", path_);
  std::filesystem::create_symlink(folder_ / "secret", path_ + ".tmp");
  const std::string warnings = warnings_of([&] {
    TraceFile(folder_ / "trace", 12, Log()).append("half");
    EXPECT_EQ(read_file(path_), "mine");
    EXPECT_EQ(write(), path_);
  });
  EXPECT_EQ(warnings, "");
  EXPECT_EQ(read_file(path_), std::string(3000, 'x'));
  EXPECT_FALSE(std::filesystem::is_symlink(path_));
  EXPECT_EQ(read_file(folder_ / "secret"), "mine") << "links are not followed";
}

TEST_F(Traces, AreOneWarningOnAFullDisk) {
  expect_one_warning(path_, [&] {
    const test::FileSizeLimit full(1500);
    EXPECT_EQ(write(), "");
  });
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "trace")) << "no half of one";
}

TEST_F(Traces, AreOneWarningWhereTheirFolderIsNone) {
  write_file(folder_ / "trace", "mine");
  expect_one_warning("it is not a folder", [&] { EXPECT_EQ(write(), ""); });
  std::filesystem::remove(folder_ / "trace");
  std::filesystem::create_directory(folder_ / "elsewhere");
  std::filesystem::create_directory_symlink(folder_ / "elsewhere", folder_ / "trace");
  expect_one_warning("it is a symbolic link", [&] { EXPECT_EQ(write(), ""); });
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "elsewhere"));
}

TEST_F(Traces, AreNoneUnlessAskedFor) {
  TraceFile none;
  none.append("x");
  EXPECT_EQ(none.finish(), "");
}

}  // namespace
}  // namespace cifar_mpi::report
