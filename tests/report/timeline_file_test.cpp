#include "cifar_mpi/report/timeline_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hdf5/hdf5.hpp"
#include "support/damage.hpp"
#include "support/errors.hpp"
#include "support/file_size_limit.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::report {
namespace {

Timeline recorded() {
  Timeline timeline;
  timeline.program = "train";
  timeline.collective = "ring";
  timeline.wire = "bf16";
  timeline.reproducible = true;
  timeline.images_per_rank = 128;
  timeline.image_size = 24;
  timeline.tasks = {{"forward", 0, engine::TaskKind::work, 0, {}},
                    {"sum", 1, engine::TaskKind::collective, 4096, {0}},
                    {"update", 0, engine::TaskKind::work, 0, {1}}};
  timeline.hosts = {"node1", "node2"};
  timeline.clock_uncertainty_ns = {0, 1500};
  return timeline;
}

Timeline::Step step(std::uint64_t number) {
  const auto from = static_cast<std::int64_t>(1000 * number);
  RankStep first{
      from, from + 900, {{0, from, from + 300}, {1, from + 300, from + 310}, {2, from + 310, from + 500}}};
  RankStep second{from - 5, from + 880, {{1, from + 1, from + 2}}, 7};
  return {number, {first, second}};
}

std::vector<Timeline::Step> steps(std::uint64_t first, std::uint64_t count) {
  std::vector<Timeline::Step> made;
  for (std::uint64_t i = 0; i < count; ++i) made.push_back(step(first + i));
  return made;
}

std::vector<std::uint64_t> numbers(const Timeline& timeline) {
  std::vector<std::uint64_t> found;
  for (const Timeline::Step& step : timeline.steps) found.push_back(step.step);
  return found;
}

using Numbers = std::vector<std::uint64_t>;

class TimelineFiles : public testing::Test {
 protected:
  TempDir dir_;
  const std::string path_ = dir_ / "timeline.h5";
};

TEST_F(TimelineFiles, HoldAllOfATimeline) {
  Timeline written = recorded();
  written.steps = steps(3, 4);
  written.steps[1].ranks[1].slices.clear();  // that rank's is missing
  written.steps[2].ranks[0].work_cpu_ns = 7;
  write_timeline(path_, written);
  EXPECT_EQ(read_timeline(path_), written);
  const Timeline empty = recorded();
  write_timeline(path_, empty);
  EXPECT_EQ(read_timeline(path_), empty);
}

/// A file that differs from a good one in one object.
struct Wrong {
  std::string object, reason;
  std::function<void(hdf5::Writer&)> write;
};

template <class T>
Wrong wrong(const std::string& object, hdf5::Dims dims, std::vector<T> values, const std::string& reason) {
  return {object, reason, [=](hdf5::Writer& file) { file.write(object, dims, values); }};
}

void write_with(const std::string& path, const Wrong& changed) {
  hdf5::Writer file;
  const auto put = [&]<class T>(const char* object, hdf5::Dims dims, std::vector<T> values) {
    if (object != changed.object) file.write(object, dims, values);
  };
  file.attribute("/", "format", "cifar_mpi timeline");
  file.attribute("/", "version", std::uint64_t{1});
  for (const char* text : {"program", "collective", "wire"}) file.attribute("/", text, "a text");
  file.attribute("/", "images_per_rank", std::uint64_t{1});
  file.write_strings("/hosts", {"a", "b"});
  put("/clock_uncertainty_ns", {2}, std::vector<std::int64_t>{0, 0});
  file.write_strings("/tasks/name", {"work", "sum"});
  put("/tasks/lane", {2}, std::vector<std::int64_t>{0, 1});
  put("/tasks/collective", {2}, std::vector<std::uint8_t>{0, 1});
  put("/tasks/bytes", {2}, std::vector<std::uint64_t>{0, 8});
  put("/tasks/first_after", {3}, std::vector<std::uint64_t>{0, 0, 1});
  put("/tasks/after", {1}, std::vector<std::int64_t>{0});
  put("/steps/step", {1}, std::vector<std::uint64_t>{4});
  put("/steps/begin_ns", {1, 2}, std::vector<std::int64_t>{0, 0});
  put("/steps/end_ns", {1, 2}, std::vector<std::int64_t>{9, 9});
  put("/steps/dropped", {1, 2}, std::vector<std::uint64_t>{0, 0});
  put("/steps/first_slice", {3}, std::vector<std::uint64_t>{0, 2, 2});
  put("/slices/task", {2}, std::vector<std::int64_t>{0, 1});
  put("/slices/begin_ns", {2}, std::vector<std::int64_t>{0, 3});
  put("/slices/end_ns", {2}, std::vector<std::int64_t>{2, 4});
  if (changed.write) changed.write(file);
  file.save(path);
}

TEST_F(TimelineFiles, AreRefusedWhereTheirPartsDoNotFit) {
  using I = std::vector<std::int64_t>;
  using U = std::vector<std::uint64_t>;
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  write_with(path_, {});
  EXPECT_EQ(read_timeline(path_).steps.size(), 1u);
  for (const Wrong& changed :
       {wrong("/clock_uncertainty_ns", {2}, I{0, -1}, "uncertain by -1 ns"),
        wrong("/clock_uncertainty_ns", {3}, I{0, 0, 0}, "instead of [2]"),
        wrong("/tasks/lane", {2}, I{0, -1}, "on lane -1"),
        wrong("/tasks/lane", {2}, I{0, kHuge}, "on lane"),
        wrong("/tasks/collective", {2}, std::vector<std::uint8_t>{0, 2}, "neither 0 nor 1"),
        wrong("/tasks/bytes", {1}, U{0}, "dims [1] instead of [2]"),
        wrong("/tasks/first_after", {3}, U{0, 1, 0}, "does not divide 1 entries"),
        wrong("/tasks/first_after", {3}, U{0, kAll, 1}, "does not divide 1 entries"),
        wrong("/tasks/after", {1}, I{2}, "has the predecessor 2 of 2"),
        wrong("/tasks/after", {1}, I{-1}, "has the predecessor -1 of 2"),
        wrong("/steps/step", {2}, U{4, 5}, "instead of [2, 2]"),
        wrong("/steps/end_ns", {1, 2}, I{9, -1}, "lasts from 0 to -1 ns"),
        wrong("/steps/begin_ns", {1, 2}, I{-kHuge, 0}, "lasts from"),
        wrong("/steps/dropped", {2}, U{0, 0}, "instead of [1, 2]"),
        wrong("/steps/work_cpu_ns", {1, 2}, I{0, -2}, "has -2 ns on a core"),
        wrong("/steps/work_cpu_ns", {2}, I{0, 0}, "instead of [1, 2]"),
        wrong("/steps/first_slice", {3}, U{0, 3, 2}, "does not divide 2 entries"),
        wrong("/steps/first_slice", {3}, U{1, 2, 2}, "does not divide 2 entries"),
        wrong("/steps/first_slice", {3}, U{0, 1, 1}, "does not divide 2 entries"),
        wrong("/slices/task", {2}, I{0, 2}, "of task 2 of 2"),
        wrong("/slices/task", {1, 2}, I{0, 1}, "it must be a list"),
        wrong("/slices/begin_ns", {2}, I{3, 0}, "slice 0 lasts from 3 to 2 ns"),
        wrong("/slices/begin_ns", {2}, I{2, 1}, "not in order"),
        wrong("/slices/end_ns", {2}, I{2, kHuge}, "lasts from"),
        wrong("/slices/end_ns", {2}, std::vector<double>{1.0, 2.0}, "expected int64, found float64")}) {
    write_with(path_, changed);
    expect_error(ErrorKind::checkpoint, {path_, changed.reason}, [&] { read_timeline(path_); });
  }
  for (const char* object : {"/steps/step", "/tasks/lane", "/slices/task"}) {
    write_with(path_, {object, {}, {}});
    expect_error(ErrorKind::checkpoint, {path_, object, "no such object"}, [&] { read_timeline(path_); });
  }
}

TEST_F(TimelineFiles, AreRefusedWhenTheyAreNone) {
  expect_error(ErrorKind::checkpoint, {path_}, [&] { read_timeline(path_); });
  hdf5::Writer other;
  other.attribute("/", "format", "cifar_mpi dataset");
  other.save(path_);
  expect_error(ErrorKind::checkpoint, {path_, "no cifar_mpi timeline"}, [&] { read_timeline(path_); });
  hdf5::Writer newer("cifar_mpi timeline", 2);
  newer.save(path_);
  expect_error(ErrorKind::checkpoint, {path_, "has version 2 of cifar_mpi timeline; this program reads 1"},
               [&] { read_timeline(path_); });
}

TEST_F(TimelineFiles, AreReadAsBeforeOrRefusedWithOneWrongByteAndWhereverTheyEnd) {
  Timeline written = recorded();
  written.steps = steps(3, 2);
  write_timeline(path_, written);
  const std::string good = read_file(path_);
  const auto outcome = [&](const std::string& content) {
    write_file(path_, content);
    return test::try_reading(ErrorKind::checkpoint, [&] { return read_timeline(path_) == written; });
  };
  ASSERT_EQ(outcome(good), test::Outcome::unchanged);
  for (std::size_t at = 0; at < good.size(); at += good.size() / 150) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    const test::Outcome found = outcome(bad);
    EXPECT_TRUE(found == test::Outcome::unchanged || found == test::Outcome::refused)
        << "byte " << at << ": " << test::to_string(found);
    EXPECT_EQ(outcome(good.substr(0, at)), test::Outcome::refused) << "cut at " << at;
  }
}

/// What a run sees of its file.
class TimelineOfARun : public TimelineFiles {
 protected:
  static const std::vector<std::int64_t>& sharp() {
    static const std::vector<std::int64_t> kSharp{0, 10};
    return kSharp;
  }
  std::string warnings_of(const std::function<void()>& action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
  }
  static std::size_t lines(const std::string& text) {
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
};

TEST_F(TimelineOfARun, GrowsAndKnowsItsLargestUncertainty) {
  {
    TimelineFile file(path_, recorded(), 0, Log());
    file.add(steps(3, 2), {0, 4000});
    file.add(steps(10, 1), {0, 20});
    file.add(steps(20, 1), {0, 20});
    file.finish();
  }
  const Timeline found = read_timeline(path_);
  EXPECT_EQ(numbers(found), (Numbers{3, 4, 10, 20}));
  EXPECT_EQ(found.steps[2], step(10));
  EXPECT_EQ(found.clock_uncertainty_ns, (std::vector<std::int64_t>{0, 4000}));
}

TEST_F(TimelineOfARun, GoesOnWithWhatLiesBeforeTheStepItIsResumedAt) {
  TimelineFile(path_, recorded(), 0, Log()).add(steps(3, 5), sharp());
  EXPECT_EQ(warnings_of([&] {
              TimelineFile file(path_, recorded(), 5, Log());
              file.add({step(6)}, sharp());
              file.finish();
            }),
            "");
  EXPECT_EQ(numbers(read_timeline(path_)), (Numbers{3, 4, 6}));
  TimelineFile(path_, recorded(), 4, Log()).finish();
  EXPECT_EQ(numbers(read_timeline(path_)), Numbers{3}) << "of a start without a sample";
}

TEST_F(TimelineOfARun, IsBegunAnewWithOtherTasksHostsOrImages) {
  Timeline other = recorded(), larger = recorded();
  other.hosts = {"node1", "node3"};
  larger.image_size = 28;
  for (const Timeline& next : {other, recorded(), larger, recorded()}) {
    TimelineFile file(path_, next, 100, Log());
    EXPECT_FALSE(std::filesystem::exists(path_)) << "a run without a sample shows another one's";
    file.add(steps(3, 1), sharp());
    file.finish();
    EXPECT_EQ(numbers(read_timeline(path_)), Numbers{3});
    EXPECT_EQ(read_timeline(path_).hosts, next.hosts);
    EXPECT_EQ(read_timeline(path_).image_size, next.image_size);
  }
}

TEST_F(TimelineOfARun, IsBegunAnewWithAWarningWhereItCannotBeRead) {
  write_file(path_, "something else");
  const std::string warnings = warnings_of([&] {
    TimelineFile file(path_, recorded(), 100, Log());
    file.add(steps(3, 1), sharp());
    file.finish();
  });
  EXPECT_EQ(lines(warnings), 1u) << warnings;
  EXPECT_TRUE(contains(warnings, "it is not an HDF5 file; a new one is started"));
  EXPECT_EQ(numbers(read_timeline(path_)), Numbers{3});
}

TEST_F(TimelineOfARun, HoldsTheLastStepsThatFitAndAllOfTheLastTime) {
  const std::uint64_t room = 8 + 2 * 5 * 8 + 4 * 3 * 8;  // of a step
  TimelineFile file(path_, recorded(), 0, Log(), 3 * room);
  file.add(steps(0, 2), sharp());
  file.finish();
  file.add(steps(10, 2), sharp());
  file.finish();
  EXPECT_EQ(numbers(read_timeline(path_)), (Numbers{1, 10, 11}));
  file.add(steps(20, 5), sharp());
  file.finish();
  EXPECT_EQ(numbers(read_timeline(path_)), (Numbers{20, 21, 22, 23, 24}));
}

TEST_F(TimelineOfARun, IsOneWarningOnAFullDiskAndThereWhenThereIsRoomAgain) {
  const std::string warnings = warnings_of([&] {
    TimelineFile file(path_, recorded(), 0, Log());
    {
      const test::FileSizeLimit full(1000);
      for (std::uint64_t i = 0; i < 3; ++i) {
        file.add(steps(10 * i, 1), sharp());
        file.finish();
      }
    }
    file.add(steps(30, 1), sharp());
    file.finish();
  });
  EXPECT_EQ(lines(warnings), 1u) << warnings;
  EXPECT_TRUE(contains(warnings, path_));
  EXPECT_TRUE(contains(warnings, "training continues"));
  EXPECT_EQ(numbers(read_timeline(path_)), (Numbers{0, 10, 20, 30}));
  EXPECT_EQ(dir_.files(), 1u);
}

}  // namespace
}  // namespace cifar_mpi::report
