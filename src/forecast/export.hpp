#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "forecast/all_reduce.hpp"
#include "forecast/step_replay.hpp"

/// A step of the forecast as input of other simulators.
namespace cifar_mpi::forecast {

/// The first step that step_seconds replays.
struct ExportedStep {
  const Recording& recording;
  Cluster cluster;
  Amount amount;
  std::vector<std::string> names;  ///< of the all-reduces, in the order of the lane
  std::vector<double> floats;      ///< their elements
  std::vector<Pattern> patterns;
  double float_bytes = 4.0;  ///< of an element in a message
};

/// The step of all ranks as a schedule in GOAL, the text format of LogGOPSim (Hoefler, Schneider and Lumsdaine 2010) and of
/// ATLAHS, with every message of the all-reduces.
///
/// A rank in GOAL is a node. Ranks of a node have processors of their own, `cpu`: 0 handles the node's messages and takes no
/// time, 1 + i does the work of the node's i-th rank, and after those each rank has one for the sums and copies of all-reduces.
/// Messages inside a node are copies. Those that ranks of one node send to another node in the same round are one message,
/// because they share the link.
///
/// Throws Error{usage} for more than 127 ranks per node, since `cpu` is a byte in LogGOPSim, and for more than
/// kMostOperations operations.
std::string goal_schedule(const ExportedStep& step);
constexpr std::string_view kGoalBegins = "// A step of ";  ///< every schedule does
constexpr std::size_t kMostOperations =
    6'000'000;  ///< about 300 MB of text; a ring of 1000 ranks has 5 million

/// The step of one rank as an execution trace of Chakra (https://github.com/mlcommons/chakra, et_def.proto): messages of
/// protobuf, each after its length. Work is COMP_NODE in microseconds, an all-reduce COMM_COLL_NODE.
std::string chakra_trace(const ExportedStep& step, int rank);
/// Every trace does: GlobalMetadata with its version, after its length.
constexpr std::string_view kChakraBegins =
    "\x07\x0a\x05"
    "0.0.4";
constexpr int kMostTraces = 1024;  ///< one file for each rank

}  // namespace cifar_mpi::forecast
