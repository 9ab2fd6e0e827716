#include "forecast/export.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <regex>

#include "../report/made_timeline.hpp"
#include "../support/temp_dir.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/forecast/forecast.hpp"
#include "forecast/goal_simulation.hpp"
#include "support/errors.hpp"

namespace cifar_mpi::forecast {
namespace {

/// Two ranks on a host each, whose work takes another time in each of four steps; messages take 0.1 ms of their processors.
report::Timeline uneven_ranks() {
  using namespace report::made;
  const auto line = [](double ms) {
    return Line{{kForward, 4.0},  {kLoss, 1.0},    {kBackward1, ms}, {kBucket0, 0.1},
                {kBackward2, ms}, {kBucket1, 7.0}, {kUpdate0, 1.0},  {kUpdate1, 1.0}};
  };
  report::Timeline made = timeline(
      {{line(5.0), line(5.3)}, {line(5.1), line(4.9)}, {line(5.2), line(6.0)}, {line(5.0), line(5.1)}}, true);
  for (report::Timeline::Step& step : made.steps)
    for (report::RankStep& rank : step.ranks) rank.work_cpu_ns = 0;
  return made;
}

struct Made {
  report::Timeline timeline = uneven_ranks();
  Recording recording = record_of(timeline);

  ExportedStep step(const Cluster& cluster, Pattern first, Pattern second) const {
    return {.recording = recording,
            .cluster = cluster,
            .amount = {.messages = 2.0},
            .names = {"first", "second"},
            .floats = {900'000.0, 100'000.0},
            .patterns = {first, second},
            .float_bytes = 4.0};
  }
};

double forecast_s(const ExportedStep& step) {
  return step_seconds(step.recording, step.cluster.ranks, step.amount, 1,
                      [&](std::size_t c, std::vector<double>& when) {
                        all_reduce(step.patterns[c], step.floats[c], step.float_bytes, step.cluster, when);
                      });
}

double simulated_s(const std::string& schedule, const Links& links) {
  return 1e-9 *
         goal::Simulation(goal::Reader::read(schedule), 1e9 * links.seconds(0.0, 1), 1e9 / links.bytes_per_s)
             .run();
}

/// Simulated over forecast.
double ratio(const ExportedStep& step) {
  return simulated_s(goal_schedule(step), step.cluster.links) / forecast_s(step);
}

constexpr const char* kLinks[] = {"100us,8gbit", "20us,1gbit", "2ms,10gbit,10us"};

TEST(GoalSchedule, TakesAsLongInASimulationAsTheForecast) {
  const Made made;
  for (const char* const link : kLinks) {
    for (const auto& [ranks, per_node] :
         {std::pair(2, 1), {8, 1}, {13, 1}, {64, 1}, {6, 6}, {8, 2}, {16, 4}, {10, 4}}) {
      for (const auto& [name, pattern] : names_of(Pattern{})) {
        if (pattern == Pattern::doubling && !std::has_single_bit(static_cast<unsigned>(ranks)))
          continue;  // the next test
        const ExportedStep step = made.step({parse_links(link), ranks, per_node}, pattern, pattern);
        EXPECT_NEAR(ratio(step), 1.0, 1e-3)
            << name << " of " << ranks << " ranks, " << per_node << " per node, " << link;
      }
    }
  }
}

TEST(GoalSchedule, SendsARingInChunks) {
  const Made made;
  for (const int ranks : {2, 4}) {
    ExportedStep step = made.step({parse_links("20us,10gbit"), ranks, 1}, Pattern::ring, Pattern::ring);
    step.floats = {0.0, 25e6};
    EXPECT_NEAR(ratio(step), 1.0, 1e-3) << ranks;
  }
  // copies and sums follow one another
  ExportedStep step = made.step({parse_links("20us,10gbit"), 4, 4}, Pattern::ring, Pattern::ring);
  step.floats = {0.0, 25e6};
  EXPECT_GT(ratio(step), 1.3);
  EXPECT_LT(ratio(step), 1.8);
}

/// When doubling ends if a message may travel before its receiver is ready; ranks on nodes of their own.
void eager_doubling(const ExportedStep& step, double floats, std::vector<double>& when) {
  const Links& links = step.cluster.links;
  const double add_s = 12.0 * floats / links.memory_bytes_per_s, takes_s = links.seconds(4.0 * floats, 1);
  std::vector<std::size_t> ranks;  // those that exchange
  for (std::size_t r = 0; r < 10; r += 2) {
    when[r] = std::max(when[r], when[r + 1] + takes_s) + add_s;
    ranks.push_back(r);
  }
  for (std::size_t r = 10; r < 13; ++r) ranks.push_back(r);
  for (std::size_t distance = 1; distance < 8; distance *= 2) {
    const std::vector<double> before = when;
    for (std::size_t i = 0; i < 8; ++i)
      when[ranks[i]] = std::max(before[ranks[i]], before[ranks[i ^ distance]] + takes_s) + add_s;
  }
  for (std::size_t r = 0; r < 10; r += 2) when[r + 1] = when[r] + takes_s;
}

TEST(GoalSchedule, SendsBeforeTheReceiverIsReady) {
  const Made made;
  for (const char* const link : kLinks) {
    ExportedStep step = made.step({parse_links(link), 13, 1}, Pattern::doubling, Pattern::doubling);
    step.floats = {1e6, 1e5};
    const double expected = step_seconds(
        step.recording, 13, step.amount, 1,
        [&](std::size_t c, std::vector<double>& when) { eager_doubling(step, step.floats[c], when); });
    EXPECT_NEAR(simulated_s(goal_schedule(step), step.cluster.links) / expected, 1.0, 1e-3) << link;
    EXPECT_LT(ratio(step), 1.0) << "the forecast waits for the receiver";
  }
}

std::string problem_of(const std::string& schedule) {
  try {
    goal::Simulation(goal::Reader::read(schedule), 1.0, 1.0).run();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

/// The text with `line` in place of its first line that begins so.
std::string with_line(const std::string& text, const std::string& begin, const std::string& line) {
  const std::size_t at = text.find("\n" + begin) + 1;
  return text.substr(0, at) + line + text.substr(text.find('\n', at));
}

TEST(GoalSchedule, HasAReceiveForEachMessageAndNoCycle) {
  const Made made;
  const ExportedStep step = made.step({parse_links("1us,1gbit"), 2, 1}, Pattern::doubling, Pattern::doubling);
  const std::string schedule = goal_schedule(step);
  goal::Simulation simulation(goal::Reader::read(schedule), 1.0, 1.0);
  EXPECT_GT(simulation.run(), 0.0);
  EXPECT_EQ(simulation.messages(), 4u);
  EXPECT_FALSE(contains(schedule, "calc 0 cpu 1\n")) << "work without time";
  // what the reader must refuse, or the test above proves nothing
  const std::string made_up =
      "num_ranks 2\nrank 0 {\nl1: recv 8b from 1 tag 1 cpu 0\nl2: send 8b to 1 tag 2 cpu 0\nl2 requires "
      "l1\n}\n"
      "rank 1 {\nl1: send 8b to 0 tag 1 cpu 0\nl2: recv 8b from 0 tag 2 cpu 0\n}\n";
  EXPECT_EQ(problem_of(made_up), "");
  EXPECT_EQ(problem_of(with_line(made_up, "l1: send", "l1: calc 1 cpu 0")), "operations wait for ever");
  EXPECT_EQ(problem_of(with_line(made_up, "l2: recv", "l2: calc 1 cpu 0")), "a message has no receiver");
  EXPECT_EQ(problem_of(with_line(made_up, "l2: recv", "l2: recv 9b from 0 tag 2 cpu 0")),
            "a message is not its receive's");
  EXPECT_EQ(problem_of(with_line(made_up, "l2 requires", "l1 requires l2")), "not GOAL: l1 requires l2");
  EXPECT_EQ(problem_of(with_line(made_up, "l2: send", "l2: send 8 to 1 tag 2 cpu 0")),
            "not GOAL: l2: send 8 to 1 tag 2 cpu 0");
}

TEST(GoalSchedule, GivesTheOptionsOfTheSimulatorForTheLinks) {
  const Made made;
  const std::string schedule =
      goal_schedule(made.step({parse_links("20us,10gbit,1us"), 8, 2}, Pattern::ring, Pattern::ring));
  EXPECT_TRUE(contains(schedule, "LogGOPSim -L 22000 -o 0 -g 0 -G 0.8 -O 0 -S 2147483647\nnum_ranks 4\n"))
      << schedule.substr(0, 500);
}

TEST(GoalSchedule, IsRefusedAboveItsLimits) {
  const Made made;
  const Links links = parse_links("1us,1gbit");
  expect_error(ErrorKind::usage, {"a step of 2000 ranks has more than 6000000 operations", "fewer ranks"},
               [&] {
                 goal_schedule(made.step({links, 2000, 1}, Pattern::ring, Pattern::ring));
               });
  expect_error(ErrorKind::usage, {"at most 127 ranks per node, and the run has 128"}, [&] {
    goal_schedule(made.step({links, 256, 128}, Pattern::ring, Pattern::ring));
  });
  expect_error(ErrorKind::usage, {"latencies up to 2.147 s"}, [&] {
    goal_schedule(made.step({parse_links("3s,1gbit"), 2, 1}, Pattern::ring, Pattern::ring));
  });
  EXPECT_EQ(problem_of(goal_schedule(made.step({links, 254, 127}, Pattern::two_level, Pattern::two_level))),
            "");
}

/// A node of a trace, as protoc prints it.
struct Node {
  std::string type, name;
  std::vector<std::size_t> after;
  long micros = 0;
  std::string attributes;
};

/// Checks the frames of a trace, and returns its nodes; needs protoc.
std::vector<Node> decode(const std::string& trace) {
  const TempDir folder;
  std::string keyed;
  for (std::size_t at = 0; at < trace.size();) {
    std::size_t length = 0, end = at;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(trace.at(end++));
      length |= static_cast<std::size_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    keyed += concat(at == 0 ? "\x0a" : "\x12", trace.substr(at, end - at + length));
    at = end + length;
  }
  write_file(folder / "trace", keyed);
  const std::string protos = CIFAR_MPI_SOURCE_ROOT "/tests/forecast";
  const std::string command = "protoc --decode=Trace -I '" + protos + "' '" + protos + "/chakra.proto' <'" +
                              (folder / "trace") + "' >'" + (folder / "text") + "'";
  if (std::system(command.c_str()) != 0) ADD_FAILURE() << command;
  std::ifstream lines(folder / "text");
  std::vector<Node> nodes;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_FALSE(std::regex_search(line, std::regex("^ *[0-9]"))) << "no field of Chakra: " << line;
    if (line == "node {") nodes.emplace_back();
    if (nodes.empty()) continue;
    std::smatch found;
    if (!std::regex_match(line, found, std::regex("  (\\w+): \"?([\\w .-]+)\"?"))) {
      nodes.back().attributes += line.substr(line.find_first_not_of(' ')) + " ";
      continue;
    }
    Node& node = nodes.back();
    const std::string field = found[1], value = found[2];
    if (field == "name") node.name = value;
    if (field == "type") node.type = value;
    if (field == "data_deps") node.after.push_back(std::stoul(value));
    if (field == "duration_micros") node.micros = std::stol(value);
    EXPECT_TRUE(field != "id" || std::stoul(value) == nodes.size()) << value;
  }
  return nodes;
}

TEST(ChakraTrace, BeginsWithItsVersionAndTheFirstWork) {
  const Made made;
  const ExportedStep step = made.step({parse_links("1us,1gbit"), 4, 1}, Pattern::ring, Pattern::ring);
  double work_s = 0.0;
  for (const auto& action : drawn_step(made.recording, 0, 0).actions)
    if (work_s == 0.0) work_s = seconds_of(action, step.amount);
  const auto micros = static_cast<unsigned>(std::lround(1e6 * work_s));
  ASSERT_TRUE(micros >= 128 && micros < 16384) << micros;  // a number of two bytes
  const std::string node =
      concat(std::string("\x08\x01\x12\x04work\x18\x04\x38"), static_cast<char>(micros % 128 + 128),
             static_cast<char>(micros / 128), std::string("\x52\x0e\x0a\x09is_cpu_op\xd8\x01\0", 16));
  const std::string begin = concat("\x07\x0a\x05", "0.0.4", static_cast<char>(node.size()), node);
  const std::string trace = chakra_trace(step, 0);
  EXPECT_EQ(trace.substr(0, begin.size()), begin);
}

TEST(ChakraTrace, HasTheWorkAndTheAllReducesOfARankWithTheirDependencies) {
  if (std::system("protoc --version >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "no protoc here (Debian and Ubuntu: protobuf-compiler)";
  const Made made;
  ExportedStep step = made.step({parse_links("1us,1gbit"), 4, 1}, Pattern::ring, Pattern::ring);
  step.amount = {.batch = 1.00007, .messages = 2.0037};  // no whole microseconds
  for (int rank = 0; rank < step.cluster.ranks; ++rank) {
    const std::vector<Node> nodes = decode(chakra_trace(step, rank));
    std::vector<std::size_t> all_reduces, work;
    double work_us = 0.0;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (const std::size_t before : nodes[i].after) EXPECT_LE(before, i) << "not written before";
      (nodes[i].type == "COMM_COLL_NODE" ? all_reduces : work).push_back(i + 1);
      if (nodes[i].type == "COMP_NODE") work_us += static_cast<double>(nodes[i].micros);
    }
    ASSERT_EQ(all_reduces.size(), 2u);
    ASSERT_EQ(work.size(), 4u);  // to bucket 0, to bucket 1, update of bucket 0, update of both
    const Node &first = nodes[all_reduces[0] - 1], &second = nodes[all_reduces[1] - 1];
    EXPECT_EQ(first.name, "first");
    EXPECT_EQ(first.after, (std::vector<std::size_t>{work[0]}));
    EXPECT_EQ(second.after, (std::vector<std::size_t>{work[1], all_reduces[0]}));
    EXPECT_EQ(nodes[work[1] - 1].after, (std::vector<std::size_t>{work[0]})) << "work does not wait";
    EXPECT_EQ(nodes[work[2] - 1].after, (std::vector<std::size_t>{work[1], all_reduces[0]}));
    EXPECT_EQ(nodes[work[3] - 1].after, (std::vector<std::size_t>{work[2], all_reduces[0], all_reduces[1]}));
    EXPECT_TRUE(contains(first.attributes, "name: \"comm_size\" int64_val: 3600000 }"));
    EXPECT_TRUE(contains(first.attributes, "name: \"comm_type\" int64_val: 0 }"));
    EXPECT_TRUE(contains(first.attributes, "name: \"is_cpu_op\" bool_val: false }"));
    double expected_us = 0.0;
    for (const auto& action : drawn_step(made.recording, static_cast<std::size_t>(rank), 0).actions)
      expected_us += 1e6 * seconds_of(action, step.amount);
    EXPECT_NEAR(work_us, expected_us, 0.5);
  }
}

TEST(ExportStep, WritesAScheduleAndATraceForEachRank) {
  const TempDir folder;
  const Request request{.ranks = {8},
                        .links = parse_links("2ms,10gbit"),
                        .goal = folder / "step.goal",
                        .chakra = folder / "step"};
  const std::vector<std::string> lines = export_step(uneven_ranks(), request);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(contains(lines[0], folder / "step.goal"));
  EXPECT_TRUE(contains(lines[1], folder / "step.7.et"));
  EXPECT_EQ(folder.files(), 9u);
  EXPECT_FALSE(read_file(folder / "step.7.et").empty());
  // the run chooses rings; doubling would be faster
  const double simulated = simulated_s(read_file(folder / "step.goal"), request.links);
  const Made made;
  ExportedStep step = made.step({request.links, 8, 1}, Pattern::ring, Pattern::ring);
  step.amount.messages = 2.0 * 7 / 8;
  EXPECT_NEAR(simulated / forecast_s(step), 1.0, 1e-3);
}

TEST(ExportStep, RefusesWhatItCannotWrite) {
  const TempDir folder;
  const Links links = parse_links("20us,10gbit");
  const auto refuses = [&](ErrorKind kind, const std::vector<std::string>& parts, const Request& request) {
    expect_error(kind, parts, [&] { export_step(uneven_ranks(), request); });
    EXPECT_EQ(folder.files(), 0u);
  };
  refuses(ErrorKind::usage, {"give --forecast one number, not 2"},
          {.ranks = {4, 8}, .links = links, .goal = folder / "step.goal"});
  refuses(ErrorKind::usage, {"a file for each rank, at most 1024, not 1025"},
          {.ranks = {1025}, .links = links, .goal = folder / "step.goal", .chakra = folder / "step"});
  refuses(ErrorKind::io, {"cannot write", "missing/step.goal", "No such file"},
          {.ranks = {4}, .links = links, .goal = folder / "missing/step.goal"});
  refuses(ErrorKind::io, {"cannot write", "missing/step.0.et", "No such file"},
          {.ranks = {4}, .links = links, .chakra = folder / "missing/step"});
  for (const std::string name : {"step.goal", "step.3.et"}) {  // where a mistake names another file
    const TempDir used;
    const Request request{.ranks = {4}, .links = links, .goal = used / "step.goal", .chakra = used / "step"};
    write_file(used / name, "precious");
    expect_error(ErrorKind::usage, {name, " exists and is not an export of", "or remove it"},
                 [&] { export_step(uneven_ranks(), request); });
    EXPECT_EQ(read_file(used / name), "precious");
    EXPECT_EQ(used.files(), 1u) << "something was written before the refusal";
    write_file(used / name, "");
    export_step(uneven_ranks(), request);
    export_step(uneven_ranks(), request);
  }
  report::Timeline served = uneven_ranks();
  served.collective = "server, 1";
  expect_error(ErrorKind::usage, {"parameter servers"},
               [&] { export_step(served, {.ranks = {4}, .links = links, .goal = folder / "step.goal"}); });
}

}  // namespace
}  // namespace cifar_mpi::forecast
