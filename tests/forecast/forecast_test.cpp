#include "cifar_mpi/forecast/forecast.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <regex>

#include "../report/made_timeline.hpp"
#include "../support/temp_dir.hpp"
#include "cifar_mpi/base/error.hpp"
#include "comm/collectives.hpp"
#include "forecast/all_reduce.hpp"
#include "forecast/step_replay.hpp"
#include "support/errors.hpp"

namespace cifar_mpi::forecast {
namespace {

using report::made::Line;

constexpr double kLatency = 1e-4, kSpeed = 1e9;

/// Links of 1e-4 s and 1 GB/s; memory takes no time.
Links links() { return {.message = {{0.0, kLatency}}, .bytes_per_s = kSpeed, .memory_bytes_per_s = 1e18}; }
Cluster cluster(int ranks, int per_node = 1) { return {links(), ranks, per_node}; }

double seconds(Pattern pattern, double bytes, const Cluster& cluster) {
  return all_reduce_seconds(pattern, bytes / 4.0, 4.0, cluster);
}

TEST(ForecastAllReduce, TakesAsLongAsTheFormulasOfItsPatterns) {
  constexpr double kBytes = 4e6, kAll = kBytes / kSpeed;
  for (const int ranks : {2, 4, 64, 1000}) {
    const double rounds = 2.0 * (ranks - 1);
    EXPECT_NEAR(seconds(Pattern::ring, kBytes, cluster(ranks)), rounds * (kLatency + kAll / ranks), 1e-9);
  }
  EXPECT_NEAR(seconds(Pattern::doubling, kBytes, cluster(64)), 6 * (kLatency + kAll), 1e-9);
  // 13 ranks: 8 parts, five of them pairs
  EXPECT_NEAR(seconds(Pattern::doubling, kBytes, cluster(13)), 5 * (kLatency + kAll), 1e-9);
  // the four ranks of a node share its link, and each sums a quarter of the array
  EXPECT_NEAR(seconds(Pattern::two_level, kBytes, cluster(64, 4)), 30 * (kLatency + kAll / 16), 1e-9);
  EXPECT_NEAR(seconds(Pattern::doubling, kBytes, cluster(16, 4)), 2 * (kLatency + 4 * kAll), 1e-9);
}

TEST(ForecastAllReduce, PipelinesTheChunksOfLongPieces) {
  // 32 MB on 2 ranks: pieces of 16 MB in 7 chunks; a rank sends a chunk while the next arrives
  constexpr double kBytes = 32e6, kChunk = 16e6 / 7 / kSpeed;
  EXPECT_NEAR(seconds(Pattern::ring, kBytes, cluster(2)), 2 * 7 * kChunk + kLatency, kLatency);
}

/// A ring of one chunk, round by round; see all_reduce.cpp.
std::vector<double> ring_in_rounds(double bytes, const Cluster& cluster, std::vector<double> at) {
  const std::size_t ranks = at.size(), per_node = static_cast<std::size_t>(cluster.per_node);
  const double piece = bytes / cluster.ranks;
  std::vector<double> free = at;
  for (std::size_t round = 0; round < 2 * (ranks - 1); ++round) {
    std::vector<double> arrives(ranks);
    for (std::size_t i = 0; i < ranks; ++i) {
      const bool crosses = (i + 1) % per_node == 0 || i + 1 == ranks;
      const double copy_s = cluster.links.copy_s(piece), start = std::max(at[i], free[i]);
      free[i] = start + (crosses ? piece / cluster.links.bytes_per_s : copy_s);
      arrives[(i + 1) % ranks] = start + (crosses ? cluster.links.seconds(piece, 1) : copy_s) +
                                 (round < ranks - 1 ? cluster.links.add_s(piece / 4.0) : 0.0);
    }
    at = arrives;
  }
  for (std::size_t i = 0; i < ranks; ++i) at[i] = std::max(at[i], free[i]);
  return at;
}

TEST(ForecastAllReduce, EndsARingAsItsRoundsDo) {
  for (const auto& [ranks, per_node] : {std::pair(2, 1), {17, 1}, {12, 4}, {13, 4}, {15, 4}, {300, 7}}) {
    for (const double memory : {1e18, 4e9, 2.1e9, 1e9}) {  // faster and slower than the links
      Cluster made = cluster(ranks, per_node);
      made.links.memory_bytes_per_s = memory;
      std::vector<double> when(static_cast<std::size_t>(ranks));
      for (std::size_t r = 0; r < when.size(); ++r) when[r] = 1e-4 * static_cast<double>(r * 7919 % 101);
      const double bytes = 1e5 * ranks;
      const std::vector<double> expected = ring_in_rounds(bytes, made, when);
      all_reduce(Pattern::ring, bytes / 4.0, 4.0, made, when);
      for (std::size_t r = 0; r < when.size(); ++r)
        ASSERT_NEAR(when[r], expected[r], 1e-12 * expected[r]) << ranks << ", " << per_node << ", " << memory;
    }
  }
}

TEST(ForecastAllReduce, SharesALinkAmongMessagesThatAreOnItAtOnce) {
  // 3 ranks: 1 and 2 send to 0 at once; then 0 sends to both
  EXPECT_NEAR(seconds(Pattern::doubling, 4e4, cluster(3)), 2 * kLatency + 4 * 4e4 / kSpeed, 1e-9);
  // a long message waits for its receiver
  EXPECT_NEAR(seconds(Pattern::doubling, 4e6, cluster(3)), 3 * (kLatency + 4e6 / kSpeed), 1e-9);
  // 5 ranks on 3 nodes: 2 and 3, on one node, exchange with 0 and 4, then with 4 and 0; rank 3 is late
  constexpr double kAll = 4e6 / kSpeed;
  for (const double late : {0.5 * kAll, 2.0 * kAll}) {
    std::vector<double> when = {0.0, 0.0, 0.0, late, 0.0};
    all_reduce(Pattern::doubling, 1e6, 4.0, cluster(5, 2), when);
    EXPECT_NEAR(*std::ranges::max_element(when), 2 * kLatency + 3 * kAll + std::max(late, kAll), 1e-9)
        << late;
  }
}

TEST(ForecastAllReduce, EndsOnNoRankBeforeTheLastIsReady) {
  for (const auto& [_, pattern] : names_of(Pattern{})) {
    std::vector<double> when(12, 0.0);
    when[7] = 1.0;
    all_reduce(pattern, 1000.0, 4.0, cluster(12, 2), when);
    for (const double end : when) EXPECT_GT(end, 1.0) << to_string(pattern);
  }
}

TEST(ForecastAllReduce, TakesSecondsForAsManyRanksAsAForecastMayHave) {
  const auto processor_s = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const double begin_s = processor_s();  // 0.1 s without sanitizers; the ring, round by round, more than 20 s
  EXPECT_GT(seconds(Pattern::ring, 4e6, cluster(kMostRanks)), 2.0 * (kMostRanks - 1) * kLatency);
  EXPECT_GT(seconds(Pattern::two_level, 4e6, cluster(kMostRanks, 4)), 2.0 * (kMostRanks / 4 - 1) * kLatency);
  comm::Nodes nodes;
  for (int r = 0; r < kMostRanks; ++r) nodes.of_rank.push_back(r);
  EXPECT_EQ(comm::choose_collective(nodes).for_the_rest, "ring");
  EXPECT_LT(processor_s() - begin_s, 12.0);
  EXPECT_GT(seconds(Pattern::doubling, 4e6, cluster(kMostRanks, 4)), 15 * kLatency);
  EXPECT_LT(processor_s() - begin_s, 120.0);
}

/// A timeline of two ranks; the backward pass of bucket 1 takes `slow_ms` and `fast_ms`.
report::Timeline two_ranks(double slow_ms, double fast_ms) {
  using namespace report::made;
  const auto line = [](double ms) {
    return Line{{kForward, 4.0},  {kLoss, 1.0},    {kBackward1, 5.0}, {kBucket0, 0.1},
                {kBackward2, ms}, {kBucket1, 7.0}, {kUpdate0, 1.0},   {kUpdate1, 1.0}};
  };
  return timeline({{line(slow_ms), line(fast_ms)}, {line(slow_ms), line(fast_ms)}}, true);
}

TEST(Forecast, OverlapsABucketWithBackwardAndWaitsForTheLast) {
  const report::Timeline timeline = two_ranks(5.0, 5.0);
  const Recording recording = record_of(timeline);
  const auto lasts = [](double first_s, double second_s) {
    return [=](std::size_t bucket, std::vector<double>& when) {
      for (double& at : when) at += bucket == 0 ? first_s : second_s;
    };
  };
  // 4 + 1 + 5 + 5 ms of work, then both updates
  EXPECT_NEAR(step_seconds(recording, 8, {}, 3, lasts(4e-3, 1e-3)), 17e-3, 1e-9);
  EXPECT_NEAR(step_seconds(recording, 8, {}, 3, lasts(9e-3, 1e-3)), 21e-3, 1e-9);
  EXPECT_NEAR(step_seconds(recording, 8, {.batch = 2.0}, 3, lasts(4e-3, 1e-3)), 32e-3, 1e-9);
}

TEST(Forecast, AddsTheTimeInWhichAProcessorMovesMessages) {
  report::Timeline timeline = two_ranks(5.0, 5.0);
  const auto at_once = [](std::size_t, std::vector<double>&) {};
  const auto seconds_with = [&](double messages) {
    return step_seconds(record_of(timeline), 8, {.messages = messages}, 3, at_once);
  };
  EXPECT_NEAR(seconds_with(5.0), 17e-3, 1e-9) << "a device's processor sums while others compute";
  for (report::Timeline::Step& step : timeline.steps)
    for (report::RankStep& rank : step.ranks) rank.work_cpu_ns = 0;  // known on a host
  // 0.1 ms of bucket 0 between two tasks that do not wait for it; the update waits for bucket 1
  EXPECT_NEAR(record_of(timeline).messages_s, 0.1e-3, 1e-12);
  EXPECT_NEAR(seconds_with(5.0), 17.5e-3, 1e-9);
}

double step_ms(const std::string& line) { return std::stod(line.substr(18, 10)); }

TEST(Forecast, NamesTheSlowestRankAsTheLimit) {
  const auto even = forecast(two_ranks(5.0, 5.0), {{16}, parse_links("0ns,10000gbit")});
  const auto uneven = forecast(two_ranks(20.0, 5.0), {{16}, parse_links("0ns,10000gbit")});
  EXPECT_NEAR(step_ms(uneven[2]) - step_ms(even[2]), 15.0, 0.1) << uneven[2];
  EXPECT_TRUE(contains(uneven[2], "the slowest rank"));
}

TEST(Forecast, ComparesFewRanksWithTheStepsThatTheyDraw) {
  const auto efficiency = [](const std::string& line) { return std::stod(line.substr(29, 19)); };
  const auto lines = forecast(two_ranks(20.0, 5.0), {{1, 2, 3}, parse_links("0ns,10000gbit")});
  EXPECT_EQ(efficiency(lines[2]), 1.0) << lines[2];
  for (const std::size_t row : {3u, 4u}) EXPECT_LT(efficiency(lines[row]), 1.0) << lines[row];
}

TEST(Forecast, NamesTheLimitOfTheLinksAndTheFastestAllReduce) {
  const report::Timeline timeline = two_ranks(5.0, 5.0);
  const auto slow = forecast(timeline, {{64}, parse_links("1us,100mbit")});
  EXPECT_TRUE(contains(slow[2], "bandwidth of the links"));
  const auto late = forecast(timeline, {{64}, parse_links("5ms,100gbit")});
  EXPECT_TRUE(contains(late[2], "latency of messages"));
  EXPECT_TRUE(
      std::regex_search(late[2], std::regex(R"(doubling, doubling \([\d.]+ ms instead of ring, ring\))")))
      << late[2];
  const auto fast = forecast(timeline, {{4}, parse_links("0ns,10000gbit")});
  EXPECT_TRUE(contains(fast[2], "computation"));
}

TEST(Forecast, ChoosesAsAutoDoesByTheLengthOfABucket) {
  report::Timeline timeline = two_ranks(5.0, 5.0);
  const Links slow = parse_links("1us,100mbit"), late = parse_links("5ms,100gbit");
  for (const Links& links : {slow, late}) {
    timeline.tasks[report::made::kBucket0].bytes = 1 << 20;
    timeline.tasks[report::made::kBucket1].bytes = 4 << 10;
    const std::string line = forecast(timeline, {{64}, links})[2];
    EXPECT_TRUE(contains(line, "instead of ring, doubling)"));
  }
}

TEST(Forecast, GivesTheNumberOfRanksAboveWhichMoreDoNotPay) {
  const auto slow = forecast(two_ranks(5.0, 5.0), {{4}, parse_links("2ms,10gbit")});
  EXPECT_TRUE(contains(slow.back(), "256 images, more ranks stop paying at 2 ranks"));
  const auto fast = forecast(two_ranks(5.0, 5.0), {{4}, parse_links("0ns,10000gbit")});
  EXPECT_TRUE(contains(fast.back(), "256 images, more ranks stop paying at 16 ranks"));
  EXPECT_TRUE(contains(fast.back(), "work that does not shrink"));
}

TEST(Forecast, RefusesARunWithoutAllReduces) {
  report::Timeline served = two_ranks(5.0, 5.0);
  served.collective = "server, 1";
  expect_error(ErrorKind::usage, {"parameter servers"}, [&] { forecast(served, {{4}, links()}); });
  report::Timeline alone = two_ranks(5.0, 5.0);
  for (report::TimelineTask& task : alone.tasks) task.kind = engine::TaskKind::work;
  expect_error(ErrorKind::usage, {"at least two ranks"}, [&] { forecast(alone, {{4}, links()}); });
}

TEST(Links, AreReadFromTheCommandLine) {
  const Links read = parse_links("20us,10gbit,1us");
  EXPECT_DOUBLE_EQ(read.seconds(1.25e9, 1), 1.0 + 22e-6);
  EXPECT_DOUBLE_EQ(read.seconds(1.25e9, 3), 3.0 + 22e-6);
  for (const char* const text : {"20us,0gbit", "20us", "", "20,10gbit", "-1us,1gbit", "20us,infgbit",
                                 "infus,1gbit", "1us,1gbit,infs", "1us,1gbit,1us,1us"}) {
    SCOPED_TRACE(text);
    expect_error(ErrorKind::usage, {"a latency of at least zero and a bandwidth above zero"},
                 [&] { parse_links(text); });
  }
  EXPECT_DOUBLE_EQ(parse_links("0us,10Gbit").seconds(1.25e9, 1), 1.0);
}

TEST(Links, AreInterpolatedBetweenMeasuredLengths) {
  const TempDir dir;
  const std::string path = dir.path() + "/links.json";
  const auto write = [&](const std::string& messages, const std::string& bandwidth) {
    std::ofstream(path) << R"({"format": "cifar_mpi links", "version": 1, "bandwidth_gbit_s": )" << bandwidth
                        << R"(, "memory_gb_s": 10, "message_bytes": [4, 1004], "message_us": )" << messages
                        << "}";
  };
  write("[10, 20]", "8");
  EXPECT_NEAR(read_links(path).seconds(504.0, 1), 15e-6, 1e-12);
  EXPECT_NEAR(read_links(path).seconds(2004.0, 1), 21e-6, 1e-12);
  for (const auto& [messages, bandwidth] :
       {std::pair("[10]", "8"), std::pair("[10, 0]", "8"), std::pair("[10, 20]", "0")}) {
    write(messages, bandwidth);
    SCOPED_TRACE(messages);
    expect_error(ErrorKind::usage, {"not above zero"}, [&] { read_links(path); });
  }
  expect_error(ErrorKind::usage, {"links.jsonx: No such file"}, [&] { read_links(path + "x"); });
}

TEST(Links, AreReadFromAStudy) {
  const TempDir dir;
  const std::string path = dir.path() + "/study.json";
  const auto write = [&](int version, const std::string& links) {
    std::ofstream(path) << "{\n \"format\": \"cifar_mpi study\",\n \"version\": " << version
                        << ",\n \"settings\": {\"hosts\": [\"a\", \"}\\\"links\"], \"links\": 1},\n"
                        << " \"pairs\": [[{\"links\": 2}]]" << links << ",\n \"paragraph\": \"\"\n}\n";
  };
  const auto links = [](const std::string& bandwidth) {
    return R"(, "links": {"format": "cifar_mpi links", "version": 1, "bandwidth_gbit_s": )" + bandwidth +
           R"(, "memory_gb_s": 5, "message_bytes": [4, 1004], "message_us": [10, 20]})";
  };
  write(2, links("8"));
  const Links read = read_links(path);
  EXPECT_EQ(read.message.size(), 2u);
  EXPECT_NEAR(read.message[1].second, 20e-6, 1e-12);
  EXPECT_EQ(read.bytes_per_s, 1e9);
  EXPECT_EQ(read.memory_bytes_per_s, 5e9);
  for (const auto& [version, part, text] :
       {std::tuple(3, links("8"), "a study of version 3, not 2; rerun its command"),
        std::tuple(2, std::string(), "the study has no links; rerun its command"),
        std::tuple(2, std::string(", \"links\": null"),
                   "measured no links between nodes; run its part links"),
        std::tuple(2, links("0"), "a bandwidth is not above zero"),
        std::tuple(2, std::string(", \"links\": {\"format\""), "--links ")}) {
    write(version, part);
    expect_error(ErrorKind::usage, {text}, [&] { read_links(path); });
  }
  for (const char* const other : {R"({"format": "other", "version": 2})", "\x89HDF"}) {
    std::ofstream(path) << other;
    expect_error(ErrorKind::usage, {"neither a study nor a file of links"}, [&] { read_links(path); });
  }
}

TEST(Links, AreReadFromTheFolderOfAStudy) {
  const TempDir dir;
  expect_error(ErrorKind::usage, {"this folder has no study.json"}, [&] { read_links(dir.path()); });
  std::ofstream(dir.path() + "/study.json")
      << R"({"format": "cifar_mpi study", "version": 2, "links": {"format": "cifar_mpi links", "version": 1, )"
      << R"("bandwidth_gbit_s": 8, "memory_gb_s": 5, "message_bytes": [4], "message_us": [10]}})";
  EXPECT_EQ(read_links(dir.path()).bytes_per_s, 1e9);
}

}  // namespace
}  // namespace cifar_mpi::forecast
