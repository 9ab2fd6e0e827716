#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cifar_mpi::forecast {

/// The cost of messages between nodes.
///
/// `message` has the time of a message while every node sends one and receives one, as in the all-reduces (between two
/// nodes: in one direction at a time); it includes the time that both ends spend on the message. Times between two lengths are interpolated linearly; above the last length a
/// message takes 1 / bytes_per_s more for each byte.
struct Links {
  std::vector<std::pair<double, double>> message;  ///< bytes, seconds; ascending bytes
  double bytes_per_s = 0.0;                        ///< of a node's link in each direction
  double memory_bytes_per_s = 10e9;                ///< read plus written by a rank that adds or copies arrays

  /// Seconds until a message of `bytes` has arrived if `flows` ranks of its node each send one over the node's link.
  double seconds(double bytes, int flows) const;
  /// Seconds for which the message occupies its share of the link.
  double occupied_s(double bytes, int flows) const { return bytes * flows / bytes_per_s; }

  /// Seconds in which a rank copies an array: reads and writes it.
  double copy_s(double bytes) const { return 2.0 * bytes / memory_bytes_per_s; }
  /// Seconds in which a rank adds an array to another: reads both and writes one.
  double add_s(double floats) const { return 3.0 * sizeof(float) * floats / memory_bytes_per_s; }

  /// The same links without the cost of bytes (infinite bandwidth), or without the cost of messages (no latency).
  Links without_bytes() const;
  Links without_latency() const;
};

/// "20us,10gbit" or "20us,10gbit,1us": latency, bandwidth, and the time that each end spends on a message. Units: ns, us, ms, s;
/// kbit, mbit, gbit (per second, powers of 1000). Throws Error{usage}.
Links parse_links(const std::string& text);

/// A file of `cifar_mpi_bench links --json`, study.json of tools/study with its `links`, or the folder of a study.
/// Throws Error{usage}.
Links read_links(const std::string& path);

}  // namespace cifar_mpi::forecast
