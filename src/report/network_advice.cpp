#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "report/losses.hpp"

namespace cifar_mpi::report {
namespace {

bool sums_with(const Timeline& timeline, std::string_view collective) {
  return timeline.collective.find(collective) != std::string::npos;
}

/// Whether bf16 would halve the bytes sent: not if it is in use, if nothing is sent, or if sums must be the
/// same on any number of ranks.
bool can_compress(const Timeline& timeline, std::size_t nodes) {
  if (timeline.reproducible || timeline.wire != to_string(comm::Wire::fp32) || nodes < 2) return false;
  return std::ranges::any_of(comm::collectives(), [&](const auto& info) {
    return info.compresses != comm::Compresses::nothing && sums_with(timeline, info.name);
  });
}

/// Whether ranks of one node send messages that shared memory could replace.
bool can_share_memory(const Timeline& timeline, std::size_t nodes) {
  return nodes == 1 && !timeline.reproducible && !is_served(timeline) && !sums_with(timeline, "window") &&
         !sums_with(timeline, "nccl");
}

/// Whether sums in shared memory take longer than memory can explain: then ranks wait for cores.
bool waits_for_cores(const Timeline& timeline, std::size_t nodes, double transfer_ms) {
  constexpr double kSlowestMemory = 1e6;  // bytes per ms
  if (nodes != 1 || !sums_with(timeline, "window")) return false;
  double bytes = 0.0;
  for (const TimelineTask& task : timeline.tasks) bytes += static_cast<double>(task.bytes);
  return bytes > 0.0 && transfer_ms > bytes / kSlowestMemory;
}

/// Whether any all-reduce of gradients may start before the last of them may.
bool overlaps(const Timeline& timeline) {
  std::vector<CollectiveOrder> order = collectives_of(timeline);
  std::erase_if(order, [&](const CollectiveOrder& collective) {  // of muon's moves, after the gradients
    return timeline.tasks[static_cast<std::size_t>(collective.task)].name.starts_with("muon ");
  });
  if (order.empty()) return false;
  const std::vector<std::int32_t> last = predecessors(timeline, order.back().task, false);
  return std::ranges::any_of(order, [&](const CollectiveOrder& collective) {
    return predecessors(timeline, collective.task, false) != last;
  });
}

/// The effect of twice the batch on the exposed time; empty if it would not help.
std::string twice_the_batch(const Timeline& timeline, const Losses& losses, const WhatIf& what_if) {
  if (is_local(timeline)) return "twice the --local-steps would halve its share";
  const double exposed = what_if.twice_batch - what_if.twice_batch_ideal;
  const double faster = what_if.twice_batch > 0.0 ? 2.0 * what_if.now / what_if.twice_batch : 1.0;
  const bool hidden = exposed <= 0.25 * losses.transfer;
  if (!hidden && faster < 1.05) return {};
  return concat("twice the batch per rank", twice_the_images(timeline),
                hidden ? " would hide it" : fmt::format(" would give {:.1f} times the images/s", faster));
}

/// Empty if it would save little.
std::string half_the_bytes(const Losses& losses, const WhatIf& what_if) {
  const double saved = what_if.now - what_if.half_wire, share = saved / losses.transfer;
  if (share < 0.1) return {};
  return share >= 0.9                   ? "--wire bf16 would hide it"
         : share >= 0.4 && share <= 0.6 ? "--wire bf16 would halve that"
                                        : fmt::format("--wire bf16 would save {:.1f} ms", saved);
}

}  // namespace

std::size_t nodes_of(const Timeline& timeline, const SampledSteps& sampled) {
  std::set<std::string> hosts;
  for (const int rank : sampled.ranks) {
    const auto r = static_cast<std::size_t>(rank);
    hosts.insert(r < timeline.hosts.size() ? timeline.hosts[r] : std::string());
  }
  return hosts.size();
}

std::string waited_for(const Timeline& timeline, const SampledSteps& sampled) {
  const std::vector<NetworkWait> waits = network_waits(timeline, sampled);
  double sum = 0.0;
  for (const NetworkWait& wait : waits) sum += wait.ms;
  std::string what = "all-reduces";
  if (!waits.empty() && waits.front().ms >= 0.7 * sum) {
    what = timeline.tasks[static_cast<std::size_t>(waits.front().task)].name;
    constexpr std::string_view kHead = "all-reduce of ";
    if (what.starts_with(kHead)) what.erase(0, kHead.size());
  }
  if (is_served(timeline)) what = "the servers";
  return what + (nodes_of(timeline, sampled) > 1 ? " between nodes" : " inside the node");
}

std::string twice_the_images(const Timeline& timeline) {
  return timeline.images_per_rank == 0 ? "" : concat(" (", 2 * timeline.images_per_rank, " images)");
}

std::string network_advice(const Timeline& timeline, const SampledSteps& sampled, const Losses& losses,
                           const WhatIf& what_if) {
  const std::size_t nodes = nodes_of(timeline, sampled);
  if (waits_for_cores(timeline, nodes, losses.transfer)) {
    return "; memory access explains only a part of that: ranks share cores with each other or with other "
           "programs; give each rank its own cores (mpirun --map-by slot:PE=THREADS --bind-to core)";
  }
  std::vector<std::string> advice;
  if (is_served(timeline)) advice.emplace_back("more --servers would share their work");
  if (can_share_memory(timeline, nodes)) advice.emplace_back("--all-reduce auto would use shared memory");
  if (!is_served(timeline) && !overlaps(timeline)) {
    advice.emplace_back(collectives_of(timeline).size() > 1
                            ? "--overlap on would run it concurrently with backward"
                            : "a smaller --bucket-mib would start a part of it sooner");
  }
  if (can_compress(timeline, nodes)) advice.push_back(half_the_bytes(losses, what_if));
  advice.push_back(twice_the_batch(timeline, losses, what_if));
  std::string text;
  for (const std::string& part : advice) {
    if (!part.empty()) text += (text.empty() ? "; " : ", ") + part;
  }
  return text;
}

}  // namespace cifar_mpi::report
