#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cifar_mpi::forecast {

/// What messages between ranks cost.
///
/// `message` is the time of a message when every node sends one and receives one at the same time, as ranks do in the
/// all-reduces; it includes what both ends spend on the message. Between its lengths the time is interpolated, beyond the
/// last one it grows with 1 / bytes_per_s.
struct Links {
  std::vector<std::pair<double, double>> message;  ///< bytes, seconds; ascending bytes
  double bytes_per_s = 0.0;                        ///< of a node's link, each way
  double memory_bytes_per_s = 10e9;  ///< that a rank reads and writes when it adds or copies arrays

  /// Seconds until a message of `bytes` has arrived, when `flows` ranks of its node send one each over the node's link.
  double seconds(double bytes, int flows) const;
  /// Seconds for which it occupies its share of the link.
  double occupied_s(double bytes, int flows) const { return bytes * flows / bytes_per_s; }

  /// The same links with messages that take only their first byte's time, or only the bytes' time.
  Links without_bytes() const;
  Links without_latency() const;
};

/// "20us,10gbit" or "20us,10gbit,1us": latency, bandwidth, and what each end spends on a message. Units: ns, us, ms, s;
/// kbit, mbit, gbit (per second, powers of 1000). Throws Error{usage}.
Links parse_links(const std::string& text);

/// A file of `cifar_mpi_bench links --json`. Throws Error{usage}.
Links read_links(const std::string& path);

}  // namespace cifar_mpi::forecast
